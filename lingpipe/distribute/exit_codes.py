"""Exit codes that programs understand, not only people."""

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the fault lies outside, such as a lost worker, and a restart can mend it
