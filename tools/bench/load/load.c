/* Closed-loop load on one server: each connection sends its next request when the last one was answered.

   One thread and one epoll; usage: load --help. Prints one JSON document. An answer that does not report success is an
   error: it is counted apart, and the text of the first one is shown. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 256, READ_AT_ONCE = 1 << 16, TEXT = 400 };
static const uint64_t LAST_ANSWERS_NS = 2000000000, STALLED_NS = 60000000000;

static const char STALLED[] = "no answer for 60 seconds";

struct options options = {.connections = 64, .seconds = 5, .warm_up_s = 1, .size = 256, .documents = 1};
static const struct protocol *protocol;
static int poller, open_connections, waiting;
static int unanswered; /* open connections without a first answer: a burst of them waits until the server accepts */
static uint64_t next_number, answered_ns;
static int64_t operations_sent, operations, all_operations, errors;
static uint32_t *latencies_us;
static size_t latencies, latency_room;
static bool counting, stopping;
static char error_text[TEXT];

static void fail(const char *what)
{
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

void *allocate(size_t size)
{
    void *found = malloc(size);
    if (!found) fail("memory");
    return found;
}

char *put_bytes(char *to, const void *bytes, size_t size)
{
    memcpy(to, bytes, size);
    return to + size;
}

char *put_be32(char *to, uint32_t value)
{
    value = htonl(value);
    return put_bytes(to, &value, 4);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t take_numbers(int count)
{
    uint64_t taken = next_number;
    next_number += (uint64_t)count;
    return taken;
}

uint64_t any_number(void)
{
    static uint64_t state = 88172645463325252; /* xorshift */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return options.first + state % options.documents;
}

static void note_error(const char *text, size_t size)
{
    if (errors++) return;
    size = size < TEXT - 1 ? size : TEXT - 1;
    for (size_t at = 0; at < size; at++) {
        bool plain = text[at] >= ' ' && text[at] <= '~' && text[at] != '"' && text[at] != '\\';
        error_text[at] = plain ? text[at] : '.';
    }
}

static void note_latency(uint64_t ns)
{
    if (latencies == latency_room) {
        latency_room = latency_room ? latency_room * 2 : 1 << 16;
        latencies_us = realloc(latencies_us, latency_room * sizeof *latencies_us);
        if (!latencies_us) fail("memory");
    }
    latencies_us[latencies++] = (uint32_t)(ns / 1000);
}

static void watch(struct connection *conn, int how, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};
    if (epoll_ctl(poller, how, conn->fd, &event)) fail("epoll_ctl");
}

static void end_connection(struct connection *conn, const char *why)
{
    note_error(why, strlen(why));
    close(conn->fd);
    if (conn->waiting) waiting--;
    conn->waiting = false;
    unanswered -= conn->sent == 1;
    open_connections--;
}

/* Writes what the socket takes; the rest goes out once it takes more. */
static void send_on(struct connection *conn)
{
    bool waited = conn->out_at > 0;
    ssize_t sent = send(conn->fd, conn->out + conn->out_at, conn->out_size - conn->out_at, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        end_connection(conn, "the connection was lost while sending");
        return;
    }
    conn->out_at += sent > 0 ? (size_t)sent : 0;
    bool whole = conn->out_at == conn->out_size;
    if (!whole) watch(conn, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    else if (waited) watch(conn, EPOLL_CTL_MOD, EPOLLIN);
}

static void send_next(struct connection *conn)
{
    bool greeting = conn->sent < protocol->greetings;
    bool all_sent = options.operations && operations_sent >= options.operations;
    if (!greeting && (stopping || all_sent)) return;
    protocol->request(conn);
    conn->sent++;
    operations_sent += !greeting;
    conn->out_at = 0;
    conn->waiting = true;
    waiting++;
    conn->began_ns = clock_ns(CLOCK_MONOTONIC);
    send_on(conn);
}

static void on_answer(struct connection *conn, size_t size, bool good)
{
    conn->waiting = false;
    waiting--;
    answered_ns = clock_ns(CLOCK_MONOTONIC);
    if (conn->sent == 1) unanswered--;
    if (!good) note_error(conn->in, size);
    else if (conn->sent > protocol->greetings) {
        all_operations++;
        if (counting) {
            operations++;
            note_latency(answered_ns - conn->began_ns);
        }
    }
    conn->in_size -= size;
    memmove(conn->in, conn->in + size, conn->in_size);
    send_next(conn);
}

static void receive(struct connection *conn)
{
    if (conn->in_room - conn->in_size < READ_AT_ONCE) {
        conn->in_room = conn->in_room * 2 + READ_AT_ONCE;
        conn->in = realloc(conn->in, conn->in_room);
        if (!conn->in) fail("memory");
    }
    ssize_t got = recv(conn->fd, conn->in + conn->in_size, READ_AT_ONCE, 0);
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN) end_connection(conn, "the server closed the connection");
        return;
    }
    conn->in_size += (size_t)got;
    bool good = false;
    size_t size = protocol->answer(conn, &good);
    if (size) on_answer(conn, size, good);
}

static void connect_all(struct connection *all)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int number = 0; number < options.connections; number++) {
        struct connection *conn = &all[number];
        int yes = 1;
        conn->number = number;
        conn->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (conn->fd < 0 || connect(conn->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
        setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        fcntl(conn->fd, F_SETFL, O_NONBLOCK);
        open_connections++;
        watch(conn, EPOLL_CTL_ADD, EPOLLIN);
    }
}

static void turn(int timeout_ms)
{
    struct epoll_event events[EVENTS];
    int found = epoll_wait(poller, events, EVENTS, timeout_ms);
    for (int at = 0; at < found; at++) {
        struct connection *conn = events[at].data.ptr;
        if (events[at].events & EPOLLOUT) send_on(conn);
        if (events[at].events & ~(uint32_t)EPOLLOUT) receive(conn);
    }
}

static int by_size(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static double percentile_ms(double share)
{
    if (!latencies) return 0;
    size_t at = (size_t)((double)latencies * share);
    return latencies_us[at < latencies ? at : latencies - 1] / 1000.0;
}

static void report(double seconds, double cpu_s)
{
    qsort(latencies_us, latencies, sizeof *latencies_us, by_size);
    double per_s = (double)operations / seconds;
    printf("{\"mode\": \"%s\", \"connections\": %d, \"batch\": %d, \"size\": %d, \"seconds\": %.3f, ", options.mode,
           options.connections, options.batch, options.size, seconds);
    printf("\"operations\": %ld, \"allOperations\": %ld, \"operationsPerS\": %.1f, \"documentsPerS\": %.1f, ",
           (long)operations, (long)all_operations, per_s, per_s * options.batch);
    printf("\"p50Ms\": %.3f, \"p90Ms\": %.3f, \"p99Ms\": %.3f, \"maxMs\": %.3f, ", percentile_ms(0.5),
           percentile_ms(0.9), percentile_ms(0.99), percentile_ms(1));
    printf("\"errors\": %ld, \"errorText\": \"%s\", \"cpuShare\": %.3f, \"nextNumber\": %lu}\n", (long)errors,
           error_text, cpu_s / seconds, (unsigned long)next_number);
}

static void run(void)
{
    struct connection *all = calloc((size_t)options.connections, sizeof *all);
    poller = epoll_create1(0);
    if (!all || poller < 0) fail("epoll");
    connect_all(all);
    uint64_t began = clock_ns(CLOCK_MONOTONIC), cpu = 0, counted = 0, now = began;
    answered_ns = began;
    unanswered = options.connections;
    for (int number = 0; number < options.connections; number++) send_next(&all[number]);
    uint64_t count_at = began + (uint64_t)(options.warm_up_s * 1e9), stop_at = UINT64_MAX;
    /* At least one operation: a rate of none says nothing. */
    while ((now < stop_at || !(operations + errors)) && open_connections && waiting) {
        if (!counting && now >= count_at && (options.operations || unanswered <= 0)) {
            counting = true;
            counted = now;
            if (!options.operations) stop_at = now + (uint64_t)(options.seconds * 1e9);
            cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        }
        turn(10);
        now = clock_ns(CLOCK_MONOTONIC);
        if (now > answered_ns + STALLED_NS) {
            note_error(STALLED, sizeof STALLED - 1);
            break;
        }
    }
    double seconds = counted ? (double)(now - counted) / 1e9 : 1e-9;
    double cpu_s = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e9;
    counting = false;
    stopping = true;
    while (waiting && open_connections && clock_ns(CLOCK_MONOTONIC) < now + LAST_ANSWERS_NS) turn(10);
    report(seconds, cpu_s);
}

static const struct protocol *protocol_of(const char *mode, bool print)
{
    const struct protocol *tables[] = {wire_protocols, http_protocols, grpc_protocols, peer_protocols};
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++)
        for (const struct protocol *row = tables[table]; row->mode; row++) {
            if (print) printf("  %-20s %s\n", row->mode, row->about);
            else if (!strcmp(row->mode, mode)) return row;
        }
    return NULL;
}

static void help(void)
{
    puts("load --port PORT --mode MODE: loads the server on this port of 127.0.0.1; prints JSON\n"
         "  --connections N (64), --seconds S (5): and until one operation is done, --warm-up S (1): not counted, before that\n"
         "  --size BYTES (256): of one document; --batch N: documents of one insert\n"
         "  --first N (the time): number of the first _id; --documents N: find looks for N numbers from there\n"
         "  --operations N: ends after N operations instead of --seconds\n"
         "modes:");
    protocol_of("", true);
    exit(0);
}

int main(int argc, char **argv)
{
    static const struct option known[] = {
        {"port", 1, 0, 'p'},  {"mode", 1, 0, 'm'},  {"connections", 1, 0, 'c'}, {"seconds", 1, 0, 's'},
        {"size", 1, 0, 'b'},  {"batch", 1, 0, 'n'}, {"warm-up", 1, 0, 'w'},     {"first", 1, 0, 'f'},
        {"help", 0, 0, 'h'},  {"documents", 1, 0, 'd'}, {"operations", 1, 0, 'o'}, {0, 0, 0, 0}};
    options.first = clock_ns(CLOCK_REALTIME);
    for (int found; (found = getopt_long(argc, argv, "", known, NULL)) != -1;) switch (found) {
        case 'p': options.port = atoi(optarg); break;
        case 'm': options.mode = optarg; break;
        case 'c': options.connections = atoi(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'b': options.size = atoi(optarg); break;
        case 'n': options.batch = atoi(optarg); break;
        case 'w': options.warm_up_s = atof(optarg); break;
        case 'f': options.first = strtoull(optarg, NULL, 10); break;
        case 'd': options.documents = strtoull(optarg, NULL, 10); break;
        case 'o': options.operations = atoll(optarg); break;
        case 'h': help(); break;
        default: return 2;
        }
    protocol = options.mode ? protocol_of(options.mode, false) : NULL;
    if (!protocol || options.port <= 0 || options.connections < 1 || options.size < 64 || !options.documents) {
        fprintf(stderr, "load: --port, --mode, --connections above 0, --size of 64 or more (--help)\n");
        return 2;
    }
    if (!options.batch) options.batch = protocol->batch;
    next_number = options.first;
    run();
    return errors ? 1 : 0;
}
