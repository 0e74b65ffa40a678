/* The peers' own protocols: PostgreSQL's extended query protocol, Redis's RESP. etcd is in grpc.c and http.c. */
#include "load.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

enum { KEY = 12, KEY_TEXT = 24, ROOM = 256 };

static char *put16(char *to, uint16_t value)
{
    value = htons(value);
    return put_bytes(to, &value, 2);
}

static char *put_string(char *to, const char *text)
{
    return stpcpy(to, text) + 1;
}

static char *put_key(char *to, uint64_t number)
{
    return put_be32(put_be32(put_be32(to, 0), (uint32_t)(number >> 32)), (uint32_t)number);
}

/* Ends the message whose type stands at `start`: its size is that of all after the type. */
static char *put_end(char *to, char *start)
{
    put_be32(start + 1, (uint32_t)(to - start - 1));
    return to;
}

static char *start_request(struct connection *conn)
{
    if (!conn->out) conn->out = allocate(ROOM + (size_t)options.batch * (size_t)(options.size + ROOM));
    return conn->out;
}

static void end_request(struct connection *conn, char *end) { conn->out_size = (size_t)(end - conn->out); }

/* --- PostgreSQL: a connection starts, prepares one statement, then binds and executes that. --- */

static char *put_sync(char *to)
{
    *to = 'S';
    return put_end(to + 5, to);
}

static void postgres_greeting(struct connection *conn, const char *statement)
{
    char *to = start_request(conn);
    if (conn->sent == 0) {
        to = put_be32(to + 4, 3 << 16); /* the protocol's version */
        to = put_string(put_string(put_string(put_string(to, "user"), "bench"), "database"), "postgres");
        *to++ = 0;
        put_be32(conn->out, (uint32_t)(to - conn->out));
    } else {
        *to = 'P';
        to = put16(put_string(put_string(to + 5, "s"), statement), 0);
        to = put_sync(put_end(to, conn->out));
    }
    end_request(conn, to);
}

/* Bind and Execute of the statement; its parameters, the key and maybe a document, are binary. */
static char *put_execute(char *to, uint64_t number, bool with_document)
{
    char *start = to;
    *to = 'B';
    to = put_string(put_string(to + 5, ""), "s");
    to = put16(put16(to, 1), 1); /* one format for all parameters: binary */
    to = put16(to, with_document ? 2 : 1);
    to = put_key(put_be32(to, KEY), number);
    if (with_document) {
        uint32_t size = (uint32_t)options.size - KEY;
        to = put_be32(to, size);
        memset(to, 'x', size);
        to += size;
    }
    to = put_end(put16(put16(to, 1), 1), start); /* results are binary, too */
    start = to;
    *to = 'E';
    return put_end(put_be32(put_string(to + 5, ""), 0), start);
}

static void postgres_insert(struct connection *conn)
{
    if (conn->sent < 2) {
        postgres_greeting(conn, "INSERT INTO bench VALUES ($1, $2)");
        return;
    }
    char *to = start_request(conn);
    uint64_t number = take_numbers(options.batch);
    for (int count = 0; count < options.batch; count++) to = put_execute(to, number + (uint64_t)count, true);
    end_request(conn, put_sync(to));
}

static void postgres_find(struct connection *conn)
{
    if (conn->sent < 2) postgres_greeting(conn, "SELECT doc FROM bench WHERE id = $1");
    else end_request(conn, put_sync(put_execute(start_request(conn), any_number(), false)));
}

/* An answer ends with ReadyForQuery. *rows: how many rows came; -1: it has an error. */
static size_t postgres_size(struct connection *conn, int *rows)
{
    size_t at = 0;
    while (at + 5 <= conn->in_size) {
        uint32_t size;
        memcpy(&size, conn->in + at + 1, 4);
        char type = conn->in[at];
        at += 1 + ntohl(size);
        if (at > conn->in_size) return 0;
        if (type == 'E') *rows = -1;
        if (type == 'D' && *rows >= 0) ++*rows;
        if (type == 'Z') return at;
    }
    return 0;
}

static size_t postgres_inserted(struct connection *conn, bool *good)
{
    int rows = 0;
    size_t size = postgres_size(conn, &rows);
    *good = rows == 0;
    return size;
}

static size_t postgres_found(struct connection *conn, bool *good)
{
    int rows = 0;
    size_t size = postgres_size(conn, &rows);
    *good = rows == (conn->sent > 2);
    return size;
}

/* --- Redis: SETs and one WAIT for a replica in one piece. --- */

static void redis_set(struct connection *conn)
{
    char *to = start_request(conn);
    uint64_t number = take_numbers(options.batch);
    int size = options.size - KEY;
    for (int count = 0; count < options.batch; count++) {
        to += sprintf(to, "*3\r\n$3\r\nSET\r\n$%d\r\n%024lx\r\n$%d\r\n", KEY_TEXT, (unsigned long)number++, size);
        memset(to, 'x', (size_t)size);
        to = put_bytes(to + size, "\r\n", 2);
    }
    static const char wait[] = "*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n";
    end_request(conn, put_bytes(to, wait, sizeof wait - 1));
}

static void redis_get(struct connection *conn)
{
    char *to = start_request(conn);
    to += sprintf(to, "*2\r\n$3\r\nGET\r\n$%d\r\n%024lx\r\n", KEY_TEXT, (unsigned long)any_number());
    end_request(conn, to);
}

/* A line for each SET, then how many replicas have it. */
static size_t redis_was_set(struct connection *conn, bool *good)
{
    const char *at = conn->in, *end = conn->in + conn->in_size;
    *good = true;
    for (int line = 0; line <= options.batch; line++) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        if (!next) return 0;
        *good = *good && (line < options.batch ? *at == '+' : *at == ':' && at[1] >= '1');
        at = next + 1;
    }
    return (size_t)(at - conn->in);
}

static size_t redis_got(struct connection *conn, bool *good)
{
    const char *line = memchr(conn->in, '\n', conn->in_size);
    if (!line) return 0;
    int size = -1;
    *good = sscanf(conn->in, "$%d", &size) == 1 && size >= 0;
    size_t whole = (size_t)(line + 1 - conn->in) + (*good ? (size_t)size + 2 : 0);
    return conn->in_size >= whole ? whole : 0;
}

const struct protocol peer_protocols[] = {
    {"postgres-majority", "PostgreSQL: prepared insert into bench (id bytea, doc bytea)", 1, 2, postgres_insert,
     postgres_inserted},
    {"postgres-bulk", "1000 of them in one transaction", 1000, 2, postgres_insert, postgres_inserted},
    {"postgres-find", "PostgreSQL: prepared select by id", 1, 2, postgres_find, postgres_found},
    {"redis-majority", "Redis: SET, WAIT 1 0", 1, 0, redis_set, redis_was_set},
    {"redis-bulk", "1000 SET, WAIT 1 0", 1000, 0, redis_set, redis_was_set},
    {"redis-find", "Redis: GET", 1, 0, redis_get, redis_got},
    {0}};
