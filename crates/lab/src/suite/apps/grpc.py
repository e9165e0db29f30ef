"""Unary calls over gRPC, without generated code.

`serve` prints `listening PORT` and answers each message with itself; `load PORT SECONDS` calls and prints what came of
it.
"""

import concurrent.futures
import json
import sys
import time

import grpc

MESSAGE = b"u" * 64
WARM_UP = 200


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda message, context: message)


def serve():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print("listening", port, flush=True)
    server.wait_for_termination()


def load(port, seconds):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(20)
        echo = channel.unary_unary("/bench/Echo")
        for _ in range(WARM_UP):
            echo(MESSAGE)
        durations = []
        processor = time.process_time_ns()
        begin = now = time.perf_counter_ns()
        while now < begin + seconds * 1e9:
            before = now
            if echo(MESSAGE) != MESSAGE:
                sys.exit("an answer differs from its call")
            now = time.perf_counter_ns()
            durations.append(now - before)
        processor = time.process_time_ns() - processor
    durations.sort()
    count = len(durations)
    print(json.dumps({
        "count": count,
        "per_second": count * 1e9 / (now - begin),
        "p99_ns": durations[count * 99 // 100],
        "client_ns": processor,
    }))


if sys.argv[1] == "serve":
    serve()
else:
    load(int(sys.argv[2]), float(sys.argv[3]))
