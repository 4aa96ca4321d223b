"""Saying in words who can reach the servers of a cluster: TensorFlow's have neither passwords nor encryption."""

import ipaddress
import socket

from absl import logging

_DANGER = ('The servers of TensorFlow know no passwords and no encryption, and listen on every network of a machine: whoever '
           'reaches a port can run any code there as you. ')
_ADVICE = 'Let only the machines of the cluster reach these ports (private network, firewall); see docs/many_machines.md.'


def warn_about_addresses(config):
    """Logs a warning where others than this machine could reach the servers of a cluster.

    Args:
        config: `ClusterConfig`.
    """
    sentence = warning(config, [name for _, name in socket.if_nameindex()])
    if sentence:
        logging.warning('%s', sentence)


def warning(config, interfaces):
    """Returns what to warn of, or None.

    Args:
        config: `ClusterConfig`.
        interfaces: names of the network interfaces of this machine.
    """
    addresses = [address for job in config.jobs.values() for address in job]
    outside = [address for address in addresses if not is_loopback(address)]
    public = [address for address in outside if _is_public(address)]
    if public:
        return f'{_listed(public)}: an address of the public Internet. {_DANGER}Use addresses of a private network. {_ADVICE}'
    if outside:
        return f'{_listed(outside)}: an address that is not only of this machine. {_DANGER}{_ADVICE}'
    if config.is_chief and [name for name in interfaces if name != 'lo']:  # said once
        return (f'{config.address} is an address of this machine only, but TensorFlow listens on its other networks too. {_DANGER}'
                'Close the port in the firewall, or start the cluster by lingpipe.distribute.local_cluster, which gives it a '
                'network of its own where it can; see docs/many_machines.md.')
    return None


def is_loopback(address):
    """Says whether 'host:port' can be reached from its own machine only, as far as the name tells."""
    host = _host(address)
    ip = _ip(host)
    return ip.is_loopback if ip else host.lower() == 'localhost'


def _is_public(address):
    ip = _ip(_host(address))
    return ip is not None and ip.is_global


def _host(address):
    return address.rpartition(':')[0].strip('[]')


def _ip(host):
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _listed(addresses):
    return ', '.join(addresses[:3]) + (', ...' if len(addresses) > 3 else '')
