/* MongoDB's wire protocol: OP_MSG with inserts and finds by _id. */
#include "load.h"

#include <stdlib.h>
#include <string.h>

enum { OP_MSG = 2013, HEADER = 16, ID_AT = 9, N_AT = 24 };
enum concern { NONE, W1, MAJORITY, UNSYNCED };

static char *put32(char *to, int32_t value)
{
    memcpy(to, &value, 4);
    return to + 4;
}

/* The head of an element: its type and its name. */
static char *put_name(char *to, char type, const char *name)
{
    *to = type;
    return stpcpy(to + 1, name) + 1;
}

static char *put_text(char *to, const char *name, const char *text)
{
    to = put32(put_name(to, 2, name), (int32_t)strlen(text) + 1);
    return stpcpy(to, text) + 1;
}

/* Ends the document that begins at `start`: its last byte and its size. */
static char *put_end(char *to, char *start)
{
    *to++ = 0;
    put32(start, (int32_t)(to - start));
    return to;
}

static char *put_concern(char *to, enum concern concern)
{
    char *start = to = put_name(to, 3, "writeConcern");
    to += 4;
    if (concern == W1) to = put32(put_name(to, 16, "w"), 1);
    else to = put_text(to, "w", "majority");
    if (concern == UNSYNCED) {
        to = put_name(to, 8, "j");
        *to++ = 0;
    }
    return put_end(to, start);
}

/* A session's id and a transaction number of 0; *number_at: where that number stands. */
static char *put_session(char *to, int connection, char **number_at)
{
    char *start = to = put_name(to, 3, "lsid");
    to = put_name(to + 4, 5, "id");
    to = put32(to, 16);
    *to++ = 4;
    memcpy(to, &options.first, 8);
    memset(to + 8, 0, 8);
    put32(to + 8, connection + 1);
    to = put_end(to + 16, start);
    *number_at = to = put_name(to, 18, "txnNumber");
    memset(to, 0, 8);
    return to + 8;
}

/* {_id: ObjectId, n: int, who: "bench", pad: "xxx"} of options.size bytes. */
static char *put_document(char *to)
{
    char *start = to;
    to = put_name(to + 4, 7, "_id");
    memset(to, 0, 12);
    to = put32(put_name(to + 12, 16, "n"), 0);
    to = put_text(to, "who", "bench");
    to = put_name(to, 2, "pad");
    int32_t pad = options.size - (int32_t)(to - start) - 6;
    to = put32(to, pad + 1);
    memset(to, 'x', (size_t)pad);
    to[pad] = 0;
    return put_end(to + pad + 1, start);
}

static void put_id(char *to, uint64_t number)
{
    for (int byte = 11; byte >= 4; byte--, number >>= 8) to[byte] = (char)number;
}

static char *put_header(char *to)
{
    memset(to, 0, HEADER + 5);
    put32(to + 12, OP_MSG);
    return to + HEADER + 5; /* no flags; a section of kind 0 */
}

/* A connection's request is made once; later ones differ in a few bytes of it. */
struct template {
    char *number_at, *documents;
};

static struct template *make_insert(struct connection *conn, enum concern concern, bool session)
{
    struct template *made = allocate(sizeof *made);
    conn->out = allocate(512 + (size_t)options.batch * (size_t)options.size);
    made->number_at = NULL;
    char *to = put_header(conn->out), *body = to;
    to = put_text(to + 4, "insert", "bench");
    if (concern) to = put_concern(to, concern);
    if (session) to = put_session(to, conn->number, &made->number_at);
    to = put_end(put_text(to, "$db", "bench"), body);
    *to++ = 1; /* a section of kind 1: a document sequence */
    char *sequence = to;
    to = stpcpy(to + 4, "documents") + 1;
    made->documents = to;
    for (int count = 0; count < options.batch; count++) to = put_document(to);
    put32(sequence, (int32_t)(to - sequence));
    conn->out_size = (size_t)(to - conn->out);
    put32(conn->out, (int32_t)conn->out_size);
    return made;
}

static struct template **templates;

static struct template **template_of(struct connection *conn)
{
    if (!templates) templates = calloc((size_t)options.connections, sizeof *templates);
    return &templates[conn->number];
}

static void insert(struct connection *conn, enum concern concern, bool session)
{
    struct template **made = template_of(conn);
    if (!*made) *made = make_insert(conn, concern, session);
    uint64_t number = take_numbers(options.batch);
    put32(conn->out + 4, (int32_t)(conn->sent + 1));
    for (char *at = (*made)->documents, *end = conn->out + conn->out_size; at < end; at += options.size, number++) {
        put_id(at + ID_AT, number);
        put32(at + N_AT, (int32_t)(number & 0x7fffffff));
    }
    int64_t transaction = conn->sent + 1;
    if (session) memcpy((*made)->number_at, &transaction, 8);
}

static void insert_w1(struct connection *conn) { insert(conn, W1, false); }
static void insert_majority(struct connection *conn) { insert(conn, MAJORITY, false); }
static void insert_unsynced(struct connection *conn) { insert(conn, UNSYNCED, false); }
static void insert_retryable(struct connection *conn) { insert(conn, W1, true); }
static void insert_driver(struct connection *conn) { insert(conn, MAJORITY, true); }

static void find(struct connection *conn)
{
    struct template **made = template_of(conn);
    if (!*made) {
        *made = allocate(sizeof **made);
        conn->out = allocate(512);
        char *to = put_header(conn->out), *body = to;
        to = put_name(put_text(to + 4, "find", "bench"), 3, "filter");
        char *filter = to;
        (*made)->documents = to = put_name(to + 4, 7, "_id");
        memset(to, 0, 12);
        to = put32(put_name(put_end(to + 12, filter), 16, "limit"), 1);
        to = put_name(to, 8, "singleBatch");
        *to++ = 1;
        to = put_end(put_text(to, "$db", "bench"), body);
        conn->out_size = (size_t)(to - conn->out);
        put32(conn->out, (int32_t)conn->out_size);
    }
    put32(conn->out + 4, (int32_t)(conn->sent + 1));
    put_id((*made)->documents, any_number());
}

/* The value of a field of the document, NULL where it has none; *type: the value's. */
static const char *field(const char *document, const char *name, char *type)
{
    const char *at = document + 4;
    while (*at) {
        const char *value = at + strlen(at) + 1;
        *type = *at;
        if (!strcmp(at + 1, name)) return value;
        int32_t size;
        memcpy(&size, value, 4);
        switch (*type) {
        case 1: case 9: case 17: case 18: at = value + 8; break;
        case 2: at = value + 4 + size; break;
        case 3: case 4: at = value + size; break;
        case 5: at = value + 5 + size; break;
        case 7: at = value + 12; break;
        case 8: at = value + 1; break;
        case 10: at = value; break;
        case 16: at = value + 4; break;
        default: return NULL;
        }
    }
    return NULL;
}

static bool is_ok(const char *document)
{
    char type;
    double one = 0;
    const char *ok = field(document, "ok", &type);
    if (ok && type == 1) memcpy(&one, ok, 8);
    return one == 1.0;
}

static size_t message_size(struct connection *conn)
{
    int32_t size;
    if (conn->in_size < HEADER + 5) return 0;
    memcpy(&size, conn->in, 4);
    return conn->in_size >= (size_t)size ? (size_t)size : 0;
}

static size_t inserted(struct connection *conn, bool *good)
{
    size_t size = message_size(conn);
    if (!size) return 0;
    const char *reply = conn->in + HEADER + 5;
    char type;
    int32_t count = 0;
    const char *n = field(reply, "n", &type);
    if (n) memcpy(&count, n, 4);
    *good = is_ok(reply) && count == options.batch && !field(reply, "writeErrors", &type) &&
            !field(reply, "writeConcernError", &type);
    return size;
}

/* A document was found: firstBatch is longer than an empty array. */
static size_t found(struct connection *conn, bool *good)
{
    size_t size = message_size(conn);
    if (!size) return 0;
    const char *reply = conn->in + HEADER + 5;
    char type;
    int32_t length = 0;
    const char *cursor = field(reply, "cursor", &type);
    const char *batch = cursor ? field(cursor, "firstBatch", &type) : NULL;
    if (batch) memcpy(&length, batch, 4);
    *good = is_ok(reply) && length > 5;
    return size;
}

const struct protocol wire_protocols[] = {
    {"w1", "insert, w: 1", 1, 0, insert_w1, inserted},
    {"majority", "insert, w: majority", 1, 0, insert_majority, inserted},
    {"unsynced", "insert, w: majority, j: false", 1, 0, insert_unsynced, inserted},
    {"bulk", "insert of 1000 documents, w: majority", 1000, 0, insert_majority, inserted},
    {"retryable", "insert with a session and a transaction number, w: 1", 1, 0, insert_retryable, inserted},
    {"retryable-majority", "the same, w: majority", 1, 0, insert_driver, inserted},
    {"find", "find by _id (--first, --documents)", 1, 0, find, found},
    {0}};
