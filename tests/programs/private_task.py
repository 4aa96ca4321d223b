"""One task of TF_CONFIG's cluster on a network of its own, which does what the lines of its input say."""

import json
import socket
import sys

from lingpipe.cluster import cluster_config, private_network

config = cluster_config.read()
inside = private_network.enter(config)
port = int(inside.address.rpartition(':')[2])
server = socket.create_server(('', port))  # every network that there is
print(json.dumps([inside.jobs, [name for _, name in socket.if_nameindex()]]), flush=True)


def _place(job, index):
    return cluster_config.host_and_port(inside.jobs[job][int(index)])


for line in sys.stdin:
    word, *rest = line.split()
    if word == 'accept':
        connection, _ = server.accept()
        with connection:
            data = b''
            while part := connection.recv(65536):
                data += part
            connection.sendall(str(len(data)).encode())
        print('accepted', flush=True)
    elif word == 'hear':
        try:
            with socket.create_connection(_place(*rest), timeout=20) as connection:
                print('something' if connection.recv(1) else 'closed', flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)
    elif word == 'ask':
        try:
            with socket.create_connection(_place(*rest), timeout=20) as connection:
                connection.sendall(b'a' * 3_000_000)
                connection.shutdown(socket.SHUT_WR)
                print('answer', connection.recv(100).decode(), flush=True)
        except OSError as error:
            print('answer', type(error).__name__, flush=True)
    else:
        try:
            socket.create_connection((rest[0], int(rest[1])), timeout=1).close()
            print('reached', flush=True)
        except OSError:
            print('unreachable', flush=True)
