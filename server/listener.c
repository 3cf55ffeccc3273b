/* See listener.h. The kernel is told by a packet filter, which needs no rights: SYNs are dropped,
   the last packet of a handshake that has begun is not. */
#include "server/listener.h"

#include <linux/filter.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#define TCP_FLAGS_OFFSET 13
#define SYN 0x02u
#define ACK 0x10u

bool listener_hold(int fd)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, TCP_FLAGS_OFFSET),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SYN | ACK),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),          /* drop */
        BPF_STMT(BPF_RET | BPF_K, 0xffffffff), /* all of it */
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    return !setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

unsigned listener_waiting(int fd)
{
    struct tcp_info info;
    memset(&info, 0, sizeof info);
    socklen_t length = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length))
        return 0;
    return info.tcpi_unacked; /* of a listening socket: the accept queue's length */
}
