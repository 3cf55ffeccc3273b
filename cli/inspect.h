/*
 * `quire inspect MODEL`: what a model file holds and what serving it costs, without loading it.
 *
 * Works on every file that the GGUF reader accepts, also where the model itself could not be
 * served; it then says why not. Nothing of the file reaches the terminal unescaped.
 */
#ifndef QUIRE_CLI_INSPECT_H
#define QUIRE_CLI_INSPECT_H

#include "base/buffer.h"
#include "cli/options.h"

#include <stdbool.h>

/* Append the description of the file at `path`, as text or as one JSON object. Errors are the GGUF
   reader's; nothing is appended then. */
enum status inspect_write(const char *path, bool json, struct buffer *out, struct error *error);

/* The command: prints to stdout, errors to stderr; returns the exit code. */
int inspect_model(const struct options *options);

#endif
