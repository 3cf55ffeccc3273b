"""llama.cpp's own server from the wheel xllamacpp, for comparing: llamacpp_server.py MODEL PORT.

Runs until standard input is closed, so that it never outlives the test that started it.
"""

import sys

import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.port = int(sys.argv[2])
parameters.hostnames = ["127.0.0.1"]
parameters.n_ctx, parameters.n_parallel = 2048, 1
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1  # its threads spin while they wait: bad company
parameters.ctx_shift = False
server = xllamacpp.Server(parameters)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
