/*
 * The programs, one for each command. Each returns the exit code: see program.h. Options are
 * resolved. Main thread.
 */
#ifndef QUIRE_CLI_PROGRAMS_H
#define QUIRE_CLI_PROGRAMS_H

#include "cli/options.h"
#include "server/runtime.h"

/* quire serve: serve.c */
int program_serve(struct options *options, runtime_backend_factory factory);
/* quire run: run.c */
int program_run(struct options *options, runtime_backend_factory factory);
/* quire prove, perplexity, bench: prove.c … */
int program_prove(const struct options *options);
int program_perplexity(const struct options *options);
int program_bench(const struct options *options);
/* quire plan: plan.c; 1 also when the answer is no. */
int program_plan(const struct options *options);
/* quire healthcheck: healthcheck.c */
int program_healthcheck(const struct options *options);

#endif
