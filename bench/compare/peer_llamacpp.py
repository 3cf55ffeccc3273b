#!/usr/bin/env python3
"""Serve a GGUF with llama.cpp's own server, from the prebuilt wheel `xllamacpp` (AVX2, no AVX-512).

  peer_llamacpp.py MODEL --port 18081 --threads 2 --parallel 8 --context 16384

Runs until it is ended. `make-peers llama.cpp` makes the Python environment that it needs.
"""
import argparse
import signal

import xllamacpp


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--parallel", type=int, default=8)
    p.add_argument("--context", type=int, default=16384, help="tokens of KV shared by all slots")
    a = p.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = a.model
    params.n_ctx, params.n_parallel, params.port, params.hostnames = a.context, a.parallel, a.port, ["127.0.0.1"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = a.threads
    params.ctx_shift = False
    params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
