/* HTTP: our insertOne, and etcd's JSON gateway. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HEAD_ROOM = 512, NOT_PAD = 54 };

static void post(struct connection *conn, const char *path, const char *body, size_t size)
{
    if (!conn->out) conn->out = allocate(HEAD_ROOM + size + 64);
    int head = sprintf(conn->out,
                       "POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                       "content-length: %zu\r\n\r\n",
                       path, size);
    memcpy(conn->out + head, body, size);
    conn->out_size = (size_t)head + size;
}

static void insert_one(struct connection *conn)
{
    static char *pad, *body;
    if (!pad) {
        int size = options.size - NOT_PAD;
        pad = allocate((size_t)options.size + 1);
        body = allocate((size_t)options.size + HEAD_ROOM);
        memset(pad, 'x', (size_t)options.size);
        pad[size > 0 ? size : 0] = 0;
    }
    uint64_t number = take_numbers(1);
    int size = sprintf(body,
                       "{\"database\":\"bench\",\"collection\":\"bench\",\"document\":{\"_id\":{\"$oid\":\"%024lx\"},"
                       "\"n\":%lu,\"who\":\"bench\",\"pad\":\"%s\"},\"writeConcern\":{\"w\":\"majority\"}}",
                       (unsigned long)number, (unsigned long)(number & 0x7fffffff), pad);
    post(conn, "/v1/action/insertOne", body, (size_t)size);
}

/* The size of the whole answer by its content-length. */
static size_t http_size(struct connection *conn)
{
    char *end = memmem(conn->in, conn->in_size, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0; /* so that strcasestr stops there */
    const char *length = strcasestr(conn->in, "content-length:");
    size_t size = (size_t)(end + 4 - conn->in) + (length ? strtoul(length + 15, NULL, 10) : 0);
    *end = '\r';
    return conn->in_size >= size ? size : 0;
}

static size_t created(struct connection *conn, bool *good)
{
    size_t size = http_size(conn);
    *good = size && !strncmp(conn->in, "HTTP/1.1 201", 12);
    return size;
}

static char *put_base64(char *to, const unsigned char *bytes, int size)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int at = 0; at < size; at += 3) {
        int left = size - at;
        unsigned three = (unsigned)bytes[at] << 16;
        if (left > 1) three |= (unsigned)bytes[at + 1] << 8;
        if (left > 2) three |= bytes[at + 2];
        *to++ = letters[three >> 18];
        *to++ = letters[three >> 12 & 63];
        *to++ = left > 1 ? letters[three >> 6 & 63] : '=';
        *to++ = left > 2 ? letters[three & 63] : '=';
    }
    return to;
}

static char *put_key(char *to, uint64_t number)
{
    char key[25];
    sprintf(key, "%024lx", (unsigned long)number);
    to = put_base64(stpcpy(to, "{\"key\":\""), (unsigned char *)key, 24);
    return stpcpy(to, "\"");
}

static void etcd_put(struct connection *conn)
{
    static char *value, *body;
    if (!value) {
        size_t room = (size_t)options.size * 2 + 16;
        value = allocate(room);
        body = allocate(room + HEAD_ROOM);
        unsigned char *bytes = allocate(room);
        memset(bytes, 'x', room);
        *put_base64(value, bytes, options.size - 24) = 0;
    }
    char *end = put_key(body, take_numbers(1));
    end += sprintf(end, ",\"value\":\"%s\"}", value);
    post(conn, "/v3/kv/put", body, (size_t)(end - body));
}

static size_t etcd_done(struct connection *conn, bool *good)
{
    size_t size = http_size(conn);
    *good = size && !strncmp(conn->in, "HTTP/1.1 200", 12);
    return size;
}

const struct protocol http_protocols[] = {
    {"http", "POST /v1/action/insertOne, w: majority", 1, 0, insert_one, created},
    {"etcd-http", "etcd's JSON gateway: POST /v3/kv/put", 1, 0, etcd_put, etcd_done},
    {0}};
