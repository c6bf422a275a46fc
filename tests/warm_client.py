"""Hand a command to the server of warm_python.py; pass on signals; end as the command ends."""

import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
for each in SIGNALS:
    signal.signal(each, lambda number, _: server.sendall(bytes([number])))
command = {"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
text = json.dumps(command).encode()
socket.send_fds(server, [len(text).to_bytes(8)], [0, 1, 2])
server.sendall(text)
status = int.from_bytes(server.recv(2), signed=True)
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status in SIGNALS else None
    os.kill(os.getpid(), -status)
sys.exit(status)
