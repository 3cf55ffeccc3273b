/*
 * Command line and environment (QUIRE_…): parsed once, validated, never changed. An unknown or
 * contradictory option is an error with a hint.
 */
#ifndef QUIRE_CLI_OPTIONS_H
#define QUIRE_CLI_OPTIONS_H

#include "base/error.h"
#include "sizing/options.h"

/* STATUS_INVALID with a message and hint. Strings point into argv, environ or static storage. The
   command line wins over the environment. */
enum status options_parse(int argc, char **argv, struct options *out, struct error *error);
void options_print_help(const struct options *options); /* to stdout */

/* A QUIRE_… variable that looks like a misspelled option ("QUIRE_MEMROY"), or NULL: for a warning.
   Call with *position 0 at first. */
const char *options_misspelled_variable(unsigned *position);

#endif
