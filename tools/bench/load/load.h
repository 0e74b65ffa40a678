/* What the event loop (load.c) and the protocols (wire.c, http.c, grpc.c, peers.c) share. */
#ifndef LOAD_H
#define LOAD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options {
    const char *mode;
    int port, connections;
    int batch;                /* documents of one operation */
    int size;                 /* bytes of one document */
    double seconds, warm_up_s;
    int64_t operations;       /* stop after so many; 0: after `seconds` */
    uint64_t first, documents; /* the first number of an _id; how many there are to be found */
};
extern struct options options;

struct connection {
    int fd, number;
    int64_t sent;             /* requests so far, greetings included */
    bool waiting;             /* for an answer */
    uint64_t began_ns;
    char *out, *in;
    size_t out_size, out_at;  /* of the request; how much of it the socket took */
    size_t in_size, in_room;
};

struct protocol {
    const char *mode, *about;
    int batch;                /* documents of one operation unless --batch says otherwise */
    int greetings;            /* requests of a connection before its first operation */
    /* Makes `out` and `out_size` the next request. */
    void (*request)(struct connection *);
    /* The size of the answer at the start of `in`; 0: it is not all there. *good: whether it reports success. */
    size_t (*answer)(struct connection *, bool *good);
};
extern const struct protocol wire_protocols[], http_protocols[], grpc_protocols[], peer_protocols[];

/* The first of `count` document numbers that no other request has. */
uint64_t take_numbers(int count);
/* The number of a document that was inserted before, by chance. */
uint64_t any_number(void);
void *allocate(size_t size);
/* Both return the place behind what they put. put_be32: the most significant byte first. */
char *put_bytes(char *to, const void *bytes, size_t size);
char *put_be32(char *to, uint32_t value);
#endif
