"""Messages from a PUSH to a PULL socket of ZeroMQ.

`serve` prints `listening PORT` and takes messages; `load PORT SECONDS` sends them and prints what came of it. The first
message is the address, an abstract Unix socket, at which the sender waits to be told how many arrived. An empty one is
the last.
"""

import json
import os
import sys
import time

import zmq

MESSAGE = b"u" * 65536


def serve():
    context = zmq.Context()
    source = context.socket(zmq.PULL)
    source.bind("tcp://127.0.0.1:*")
    print("listening", source.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":")[-1], flush=True)
    end = context.socket(zmq.PUSH)
    end.connect(source.recv_string())
    count = 0
    while message := source.recv():
        if len(message) != len(MESSAGE):
            sys.exit("a message was cut")
        count += 1
    end.send_string(str(count))
    # Its processor time is asked for until it is killed.
    source.recv()


def load(port, seconds):
    context = zmq.Context()
    end = context.socket(zmq.PULL)
    end_address = f"ipc://@underpass-bench-{os.getpid()}"
    end.bind(end_address)
    target = context.socket(zmq.PUSH)
    target.connect(f"tcp://127.0.0.1:{port}")
    target.send_string(end_address)
    count = 0
    processor = time.process_time_ns()
    begin = time.perf_counter_ns()
    while time.perf_counter_ns() < begin + seconds * 1e9:
        target.send(MESSAGE)
        count += 1
    target.send(b"")
    arrived = int(end.recv_string())
    duration = time.perf_counter_ns() - begin
    processor = time.process_time_ns() - processor
    if arrived != count:
        sys.exit(f"{arrived} of {count} messages arrived")
    print(json.dumps({"count": count, "per_second": count * 1e9 / duration, "client_ns": processor}))


if sys.argv[1] == "serve":
    serve()
else:
    load(int(sys.argv[2]), float(sys.argv[3]))
