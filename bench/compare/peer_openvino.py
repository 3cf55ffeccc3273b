#!/usr/bin/env python3
"""Measure OpenVINO GenAI's continuous-batching pipeline (paged attention) in process, on load.py's prompts.

  peer_openvino.py MODEL.gguf --threads 2 --concurrency 8 --requests 24 --max-tokens 64

No HTTP is involved, which favours it. Prints one JSON object with load.py's names. `make-peers openvino`
makes the Python environment that it needs.
"""
import argparse
import json
import resource
import time

import openvino_genai as ov

import load


def open_pipeline(args):
    scheduler = ov.SchedulerConfig()
    scheduler.cache_size = args.cache_gib
    scheduler.max_num_seqs = max(args.concurrency, 1)
    scheduler.enable_prefix_caching = args.prefix_words > 0
    return ov.ContinuousBatchingPipeline(args.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": args.threads}, {})


def answer_config(max_tokens):
    config = ov.GenerationConfig()
    config.max_new_tokens, config.ignore_eos = max_tokens, True
    config.do_sample = config.apply_chat_template = False
    return config


def run(pipe, prompts, concurrency, config):
    """Closed loop, as load.py's: (wall_s, first_s, gaps_s, generated tokens)."""
    pending, active, first, gaps, generated = list(range(len(prompts)))[::-1], {}, [], [], 0
    start = time.monotonic()
    while pending or active:
        while pending and len(active) < concurrency:
            i = pending.pop()
            active[i] = [pipe.add_request(i, prompts[i], config), time.monotonic(), None]
        pipe.step()
        now = time.monotonic()
        for i in list(active):
            handle, began, last = active[i]
            if handle.can_read():
                generated += sum(len(o.generated_ids) for o in handle.read().values())
                (first.append(now - began) if last is None else gaps.append(now - last))
                active[i][2] = now
            if handle.get_status() != ov.GenerationStatus.RUNNING:
                del active[i]
    return time.monotonic() - start, first, gaps, generated


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--cache-gib", type=int, default=1)
    load.add_work(p)
    args = p.parse_args()
    began = time.monotonic()
    pipe = open_pipeline(args)
    ready = time.monotonic() - began
    run(pipe, [load.words(777_777, 128)], 1, answer_config(4))      # warm, as the servers are
    tokenizer = pipe.get_tokenizer()
    prompts = [load.prefix_of(args) + load.words(args.seed + i, args.words) for i in range(args.requests)]
    prompt_tokens = sum(tokenizer.encode(text).input_ids.shape[1] for text in prompts)
    cpu = time.process_time()
    out = load.figures(args.concurrency, *run_figures(pipe, prompts, args, prompt_tokens))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({**out, "server_cpu_s": round(time.process_time() - cpu, 3), "client_cpu_s": 0.0,
                      "errors": 0, "ready_s": round(ready, 3), "peak_rss_mib": peak_kib // 1024}))


def run_figures(pipe, prompts, args, prompt_tokens):
    wall, first, gaps, generated = run(pipe, prompts, args.concurrency, answer_config(args.max_tokens))
    return wall, first, gaps, prompt_tokens, generated


if __name__ == "__main__":
    main()
