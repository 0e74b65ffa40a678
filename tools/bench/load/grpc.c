/* etcd's own protocol: gRPC, one call at a time on each connection. HTTP/2 without a library: each request has the same
   header block, and of an answer only the frames are read. A document fits into one frame (16 KB). */
#include "load.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

enum { KEY = 24, FRAME_HEAD = 9, GRPC_HEAD = 5, ROOM = 512 };
enum { DATA, HEADERS, RST_STREAM = 3, SETTINGS, GOAWAY = 7, WINDOW_UPDATE = 8 };
enum { ACK = 1, END_STREAM = 1, END_HEADERS = 4 };

static char *put_frame(char *to, uint32_t size, int type, int flags, uint32_t stream)
{
    to = put_be32(to, size << 8 | (uint32_t)type);
    *to++ = (char)flags;
    return put_be32(to, stream);
}

/* A header field that neither side keeps (RFC 7541, 6.2.2). name: its bytes as they are encoded. */
static char *put_header(char *to, const char *name, size_t name_size, const char *value)
{
    to = put_bytes(to, name, name_size);
    *to++ = (char)strlen(value);
    return put_bytes(to, value, strlen(value));
}

static char *put_varint(char *to, uint32_t value)
{
    for (; value >= 0x80; value >>= 7) *to++ = (char)(value | 0x80);
    *to++ = (char)value;
    return to;
}

/* A field of bytes in a message of protocol buffers, up to its bytes. */
static char *put_field(char *to, int number, uint32_t size)
{
    *to++ = (char)(number << 3 | 2);
    return put_varint(to, size);
}

/* The preface, and a window for answers that is never used up. The server's limits are larger than what is sent. */
static void greet(struct connection *conn)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    char *to = conn->out = allocate(ROOM + (size_t)options.size);
    to = put_bytes(to, preface, sizeof preface - 1);
    to = put_frame(to, 0, SETTINGS, 0, 0);
    to = put_frame(to, 4, WINDOW_UPDATE, 0, 0);
    to = put_be32(to, 0x7fffffff - 0xffff);
    conn->out_size = (size_t)(to - conn->out);
}

static char *put_call(struct connection *conn, const char *path, uint32_t size)
{
    char *to = conn->out;
    uint32_t stream = (uint32_t)(2 * conn->sent - 1);
    if (conn->sent == 1) to = put_frame(to, 0, SETTINGS, ACK, 0);
    char *head = to;
    to += FRAME_HEAD;
    *to++ = (char)0x83; /* :method POST */
    *to++ = (char)0x86; /* :scheme http */
    to = put_header(to, "\x04", 1, path);
    to = put_header(to, "\x01", 1, "127.0.0.1");
    to = put_header(to, "\x0f\x10", 2, "application/grpc"); /* content-type */
    to = put_header(to, "\x00\x02te", 4, "trailers");
    put_frame(head, (uint32_t)(to - head - FRAME_HEAD), HEADERS, END_HEADERS, stream);
    to = put_frame(to, GRPC_HEAD + size, DATA, END_STREAM, stream);
    *to++ = 0; /* not compressed */
    return put_be32(to, size);
}

static char *put_key(char *to, uint64_t number)
{
    return to + sprintf(to, "%024lx", (unsigned long)number);
}

static void grpc_put(struct connection *conn)
{
    if (conn->sent == 0) {
        greet(conn);
        return;
    }
    char size_bytes[5];
    uint32_t size = (uint32_t)options.size - KEY;
    uint32_t all = 2 + KEY + 1 + (uint32_t)(put_varint(size_bytes, size) - size_bytes) + size;
    char *to = put_call(conn, "/etcdserverpb.KV/Put", all);
    to = put_key(put_field(to, 1, KEY), take_numbers(1));
    to = put_field(to, 2, size);
    memset(to, 'x', size);
    conn->out_size = (size_t)(to + size - conn->out);
}

static void grpc_range(struct connection *conn)
{
    if (conn->sent == 0) {
        greet(conn);
        return;
    }
    char *to = put_call(conn, "/etcdserverpb.KV/Range", 2 + KEY);
    to = put_key(put_field(to, 1, KEY), any_number());
    conn->out_size = (size_t)(to - conn->out);
}

/* An answer to the preface ends with the server's settings, one to a call with the end of its stream. A call that failed
   has no message, only trailers. *message: the bytes of the message. */
static size_t answer_size(struct connection *conn, bool *good, size_t *message)
{
    size_t at = 0;
    *good = true;
    *message = 0;
    while (at + FRAME_HEAD <= conn->in_size) {
        uint32_t head;
        memcpy(&head, conn->in + at, 4);
        size_t size = ntohl(head) >> 8;
        int type = conn->in[at + 3], flags = conn->in[at + 4];
        at += FRAME_HEAD + size;
        if (at > conn->in_size) return 0;
        if (type == DATA) *message += size;
        if (type == RST_STREAM || type == GOAWAY) *good = false;
        if (conn->sent == 1 ? type == SETTINGS && !(flags & ACK) : (type <= HEADERS && flags & END_STREAM) || !*good)
            return at;
    }
    return 0;
}

static size_t was_put(struct connection *conn, bool *good)
{
    size_t message, size = answer_size(conn, good, &message);
    *good = *good && (conn->sent == 1 || message > GRPC_HEAD);
    return size;
}

static size_t was_found(struct connection *conn, bool *good)
{
    size_t message, size = answer_size(conn, good, &message);
    *good = *good && (conn->sent == 1 || message > (size_t)options.size - KEY);
    return size;
}

const struct protocol grpc_protocols[] = {
    {"etcd-majority", "etcd: Put over gRPC", 1, 1, grpc_put, was_put},
    {"etcd-find", "etcd: Range over gRPC", 1, 1, grpc_range, was_found},
    {0}};
