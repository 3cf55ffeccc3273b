/*
 * The program: from argv to an exit code. Shared by `quire` and the scripted test server, which
 * differ in what makes the backend.
 *
 * Exit codes: 0 fine (also after SIGTERM), 1 it failed, 2 wrong usage, 128 + signal after a second
 * SIGTERM or SIGINT.
 */
#ifndef QUIRE_CLI_PROGRAM_H
#define QUIRE_CLI_PROGRAM_H

#include "server/runtime.h"

/* Call it first thing in main: it also tunes the allocator, which must happen before threads. */
int program_main(int argc, char **argv, runtime_backend_factory factory);

#endif
