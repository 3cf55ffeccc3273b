/*
 * How a listening socket ends without resetting anybody.
 *
 * Closing one resets the connections that the kernel has completed and nobody has accepted yet:
 * their clients are connected, may have sent a request, and get no answer. So first the kernel
 * stops taking new connections, then the rest is accepted, then the socket is closed. A client that
 * comes in between waits for its next SYN, a second later, and is refused then. Any thread.
 */
#ifndef QUIRE_SERVER_LISTENER_H
#define QUIRE_SERVER_LISTENER_H

#include <stdbool.h>

/* From now on no new connection is taken. False where the kernel does not do this: then there is
   nothing to wait for. */
bool listener_hold(int fd);

/* Connections that are complete and not accepted. */
unsigned listener_waiting(int fd);

#endif
