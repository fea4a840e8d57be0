/* A load generator for RocketMQ brokers that costs little itself.
 *
 * A benchmark of a broker on a small machine measures the client as much as the broker unless the client is
 * nearly free. This one is: one thread, one epoll loop, and a request is a frame built beforehand whose changing
 * fields (opaque, born time, unique key, queue, topic number, key) have a fixed width and are patched in place. The
 * frames lie one behind the other, as they are sent, in memory that all connections share and that fits a core's cache;
 * so do the answers. The bytes are those of the Java client 5.5.0, field for field, in the order it writes them.
 *
 *   loadgen send  --port P [...]   pipelined or synchronous sends (request 310)
 *   loadgen pull  --port P [...]   pulls as a push consumer sends them (request 11, after a heartbeat 34)
 *   loadgen send  --port P,Q [...] the same over several brokers: connection after connection to the next of them
 *   loadgen sink  --port P         answers every request with a canned answer: the generator's own ceiling
 *
 * --user and --secret sign sends. A signature is over the fields that change, and signing each send would cost more than
 * sending it. RocketMQ's signature has no time and no number in it, so the frames are signed beforehand and sent again
 * and again; only their opaque, which is not signed, is patched. --tls needs the form of this program that was compiled
 * with -DWITH_TLS -lssl -lcrypto.
 *
 * Prints one line of JSON. Exit code 1 and {"error": ...} if the run could not be completed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/ssl.h>
#endif

enum { MAX_CONNECTIONS = 256, MAX_QUEUES = 1024, INPUT_BYTES = 4 << 20, OUTPUT_BYTES = 1 << 20, STAGE_BYTES = 1 << 18, SECONDS_KEPT = 600, MAX_BROKERS = 64 };
enum { LEAST_TO_REST = 64, LONGEST_REST_NS = 5000000 };

static void die(const char *format, ...) {
    va_list args;
    char text[512];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 32) *c = '\'';
    printf("{\"error\": \"%s\"}\n", text);
    fflush(stdout);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static double cpu_seconds(int who_sys) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    struct timeval t = who_sys ? u.ru_stime : u.ru_utime;
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static void put32(unsigned char *p, uint32_t v) {
    p[0] = (unsigned char)(v >> 24);
    p[1] = (unsigned char)(v >> 16);
    p[2] = (unsigned char)(v >> 8);
    p[3] = (unsigned char)v;
}

static uint32_t get32(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_decimal(unsigned char *p, int width, uint64_t v) {
    for (int i = width - 1; i >= 0; i--, v /= 10) p[i] = (unsigned char)('0' + v % 10);
}

static void put_hex(unsigned char *p, int width, uint64_t v) {
    for (int i = width - 1; i >= 0; i--, v >>= 4) p[i] = (unsigned char)"0123456789ABCDEF"[v & 15];
}

/* ---- latency histogram: 256 steps in each power of two of nanoseconds, so within about 0.4 % ---- */

#define STEP_BITS 8
#define STEPS (1 << STEP_BITS)

static uint64_t histogram[64 * STEPS], histogram_count, histogram_max;
static double histogram_sum;

static void record_latency(uint64_t ns) {
    int top = 63 - __builtin_clzll(ns | STEPS), shift = top - STEP_BITS;
    histogram[shift * STEPS + (int)(ns >> shift)]++;
    histogram_count++;
    histogram_sum += (double)ns;
    if (ns > histogram_max) histogram_max = ns;
}

static double latency_us(double fraction) {
    uint64_t want = (uint64_t)(fraction * (double)histogram_count), seen = 0;
    for (int i = 0; i < 64 * STEPS; i++) {
        seen += histogram[i];
        if (seen > want) {
            int shift = i / STEPS - 1;
            uint64_t step = (uint64_t)(i % STEPS + STEPS);
            return shift < 0 ? 0 : (double)((step << shift) + (1ull << shift) / 2) / 1000.0;
        }
    }
    return (double)histogram_max / 1000.0;
}

/* ---- options ---- */

static const char *host = "127.0.0.1", *topic = "bench", *group = "bench_group", *broker_name = "broker-a";
static int ports[MAX_BROKERS], brokers, queues = 4, connections = 1, window = 1, body_bytes = 100, topics = 1, batch = 32;
static int with_keys, with_tags, with_id56, with_tls;
static const char *user, *secret;
static double seconds, warmup;
static uint64_t count;

static void parse_ports(const char *text) {
    for (brokers = 0; *text; brokers++) {
        char *end;
        long value = strtol(text, &end, 10);
        if (value <= 0 || value > 65535 || (*end && *end != ',')) die("--port: numbers with commas between them, not %s", text);
        if (brokers == MAX_BROKERS) die("--port: at most %d", MAX_BROKERS);
        ports[brokers] = (int)value;
        text = *end ? end + 1 : end;
    }
}

static void parse_options(int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--keys")) { with_keys = 1; continue; }
        if (!strcmp(name, "--tags")) { with_tags = 1; continue; }
        if (!strcmp(name, "--long-ids")) { with_id56 = 1; continue; }
        if (!strcmp(name, "--tls")) { with_tls = 1; continue; }
        if (i + 1 >= argc) die("option %s needs a value", name);
        const char *value = argv[++i];
        if (!strcmp(name, "--host")) host = value;
        else if (!strcmp(name, "--port")) parse_ports(value);
        else if (!strcmp(name, "--topic")) topic = value;
        else if (!strcmp(name, "--group")) group = value;
        else if (!strcmp(name, "--broker")) broker_name = value;
        else if (!strcmp(name, "--user")) user = value;
        else if (!strcmp(name, "--secret")) secret = value;
        else if (!strcmp(name, "--topics")) topics = atoi(value);
        else if (!strcmp(name, "--queues")) queues = atoi(value);
        else if (!strcmp(name, "--connections")) connections = atoi(value);
        else if (!strcmp(name, "--window")) window = atoi(value);
        else if (!strcmp(name, "--body")) body_bytes = atoi(value);
        else if (!strcmp(name, "--batch")) batch = atoi(value);
        else if (!strcmp(name, "--seconds")) seconds = atof(value);
        else if (!strcmp(name, "--warmup")) warmup = atof(value);
        else if (!strcmp(name, "--count")) count = strtoull(value, NULL, 10);
        else die("no such option: %s", name);
    }
    if (!brokers) die("--port is needed");
    if (connections < brokers) die("--connections: at least one for each of %d ports", brokers);
    if (connections < 1 || connections > MAX_CONNECTIONS) die("--connections: 1 to %d", MAX_CONNECTIONS);
    if (queues < 1 || queues > MAX_QUEUES) die("--queues: 1 to %d", MAX_QUEUES);
    if (body_bytes < 1 || body_bytes > 65536) die("--body: 1 to 65536");
    if (topics < 1 || topics > 100000) die("--topics: 1 to 100000");
    if (!user != !secret) die("--user and --secret go together");
    if (user && (topics > 1 || with_keys)) die("signed sends go to one topic and have no keys");
#ifndef WITH_TLS
    if (with_tls) die("this program was compiled without TLS");
#endif
}

/* ---- connections ---- */

struct connection {
    int fd, waiting_to_write;
    int in_flight, allowed;
    unsigned char *input, *output;
    size_t input_used, output_start, output_used;
    uint64_t numbered;               /* sends so far: their opaques count from FIRST_OPAQUE on */
    unsigned char opaque_digits[24]; /* of the next one */
    uint64_t *sent_at;               /* ring of send times, by opaque; 0 once it is answered */
#ifdef WITH_TLS
    SSL *tls;
#endif
};

static struct connection table[MAX_CONNECTIONS];
static int poller;
static uint64_t polls, reads, writes;

static int open_socket(int number) {
    int port = ports[number % brokers];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("--host must be an IPv4 address");
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect to port %d: %s", port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Reads or writes some bytes; -1 with errno EAGAIN if it would have to wait. */
#ifdef WITH_TLS
static ssize_t tls_result(struct connection *c, int n) {
    if (n > 0) return n;
    int why = SSL_get_error(c->tls, n);
    if (why == SSL_ERROR_ZERO_RETURN) return 0;
    errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
}
static ssize_t write_some(struct connection *c, const void *data, size_t length) {
    return c->tls ? tls_result(c, SSL_write(c->tls, data, (int)length)) : send(c->fd, data, length, MSG_NOSIGNAL);
}
static ssize_t read_some(struct connection *c, void *data, size_t length) {
    if (!c->tls) return recv(c->fd, data, length, 0);
    /* All there is: what OpenSSL keeps does not wake epoll again. */
    size_t got = 0;
    while (got < length) {
        ssize_t n = tls_result(c, SSL_read(c->tls, (char *)data + got, (int)(length - got)));
        if (n <= 0) return got ? (ssize_t)got : n;
        got += (size_t)n;
    }
    return (ssize_t)got;
}
static void secure(struct connection *c) {
    static SSL_CTX *context;
    if (!with_tls) return;
    if (!context) {
        context = SSL_CTX_new(TLS_client_method()); /* believes everybody: the broker is what is measured */
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    c->tls = SSL_new(context);
    SSL_set_fd(c->tls, c->fd);
    if (SSL_connect(c->tls) != 1) die("no TLS handshake");
}
#else
static ssize_t write_some(struct connection *c, const void *data, size_t length) {
    return send(c->fd, data, length, MSG_NOSIGNAL);
}
static ssize_t read_some(struct connection *c, void *data, size_t length) { return recv(c->fd, data, length, 0); }
static void secure(struct connection *c) { (void)c; }
#endif

static void watch(struct connection *c, int operation, int writable) {
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0u), .data = {.ptr = c}};
    if (epoll_ctl(poller, operation, c->fd, &event)) die("epoll_ctl: %s", strerror(errno));
    c->waiting_to_write = writable;
}

static void start_connection(struct connection *c, int fd) {
    c->fd = fd;
    c->input = malloc(INPUT_BYTES);
    c->output = malloc(OUTPUT_BYTES);
    secure(c);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    watch(c, EPOLL_CTL_ADD, 0);
}

static void flush_output(struct connection *c) {
    while (c->output_start < c->output_used) {
        writes++;
        ssize_t n = write_some(c, c->output + c->output_start, c->output_used - c->output_start);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!c->waiting_to_write) watch(c, EPOLL_CTL_MOD, 1);
            return;
        }
        if (n < 0) die("send: %s", strerror(errno));
        c->output_start += (size_t)n;
    }
    c->output_start = c->output_used = 0;
    if (c->waiting_to_write) watch(c, EPOLL_CTL_MOD, 0);
}

/* Writes what lies elsewhere; keeps a copy of what the socket does not take now. Nothing may wait before it. */
static void write_through(struct connection *c, const unsigned char *data, size_t length) {
    while (length) {
        writes++;
        ssize_t n = write_some(c, data, length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) die("send: %s", strerror(errno));
        if (n < 0) break;
        data += n;
        length -= (size_t)n;
    }
    memcpy(c->output, data, length);
    c->output_start = 0;
    c->output_used = length;
    if (length) watch(c, EPOLL_CTL_MOD, 1);
}

/* ---- answers ---- */

static uint64_t codes[4096];

/* A key that answers carry at the same distance from their header's end, mostly: where it was found the last time. */
struct habit {
    const char *key;
    size_t back;
};

static long number_at(const char *at, const char *end) {
    if (*at == '"') at++;
    long value = 0;
    while (at < end && *at >= '0' && *at <= '9') value = value * 10 + (*at++ - '0');
    return value;
}

static long field_number(const char *header, size_t length, const char *key) {
    /* The number after `key`, which may be quoted; -1 if the key is not there. */
    const char *at = memmem(header, length, key, strlen(key));
    return at ? number_at(at + strlen(key), header + length) : -1;
}

static inline long usual_number(const char *header, size_t length, struct habit *habit, size_t key_length) {
    const char *end = header + length, *at = end - habit->back;
    if (habit->back > length || habit->back < key_length || memcmp(at, habit->key, key_length)) {
        at = memmem(header, length, habit->key, key_length);
        if (!at) return -1;
        habit->back = (size_t)(end - at);
    }
    return number_at(at + key_length, end);
}

struct answer {
    long code, opaque, flag;
    const char *header;
    size_t header_length, body_length;
    const unsigned char *body;
};

static void read_answer(struct answer *a, const unsigned char *frame, size_t length) {
    uint32_t word = get32(frame + 4);
    if (word >> 24) die("answer header is not JSON (type %u)", word >> 24);
    a->header = (const char *)frame + 8;
    a->header_length = word & 0xFFFFFF;
    if (a->header_length + 4 > length) die("answer header longer than its frame");
    a->body = frame + 8 + a->header_length;
    a->body_length = length - 4 - a->header_length;
    static struct habit opaque = {.key = "\"opaque\":"}, flag = {.key = "\"flag\":"};
    a->code = !memcmp(a->header, "{\"code\":0,", 10) ? 0 : field_number(a->header, a->header_length, "\"code\":");
    a->opaque = usual_number(a->header, a->header_length, &opaque, 9);
    a->flag = usual_number(a->header, a->header_length, &flag, 7);
    if (a->flag < 0) a->flag = 0;
}

typedef void on_answer(struct connection *c, const struct answer *a, uint64_t now);

/* Reads what has arrived and calls back for every whole frame. What arrives is read into memory that all connections
 * share; only the begin of a frame that has not arrived in full is kept for each. */
static void read_input(struct connection *c, on_answer *callback) {
    static unsigned char arrived[INPUT_BYTES];
    unsigned char *input = c->input_used ? c->input : arrived;
    reads++;
    ssize_t n = read_some(c, input + c->input_used, INPUT_BYTES - c->input_used);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) die("the broker closed the connection (%s)", n ? strerror(errno) : "end of stream");
    c->input_used += (size_t)n;
    uint64_t now = now_ns();
    size_t at = 0;
    while (c->input_used - at >= 8) {
        size_t length = get32(input + at);
        if (length > INPUT_BYTES - 4) die("answer of %zu bytes", length);
        if (c->input_used - at < length + 4) break;
        struct answer a;
        read_answer(&a, input + at, length);
        callback(c, &a, now);
        at += length + 4;
    }
    c->input_used -= at;
    if (c->input_used && (at || input == arrived)) memmove(c->input, input + at, c->input_used);
}

/* ---- the measured period ---- */

static uint64_t started_at, measured_from, stop_at, last_answer_at;
static uint64_t sent, answered, good, good_bytes, warm_good, unmatched;
static uint64_t per_second[SECONDS_KEPT];
static double cpu_user_from, cpu_sys_from;
static int measuring;

static void begin_period(void) {
    started_at = now_ns();
    stop_at = seconds > 0 ? started_at + (uint64_t)((warmup + seconds) * 1e9) : UINT64_MAX;
    if (warmup <= 0) {
        measuring = 1;
        measured_from = started_at;
        cpu_user_from = cpu_seconds(0);
        cpu_sys_from = cpu_seconds(1);
    }
}

static void note_good(uint64_t now, uint64_t how_many, uint64_t bytes) {
    if (!measuring && now >= started_at + (uint64_t)(warmup * 1e9)) {
        measuring = 1;
        measured_from = now;
        cpu_user_from = cpu_seconds(0);
        cpu_sys_from = cpu_seconds(1);
        memset(histogram, 0, sizeof histogram);
        histogram_count = histogram_max = 0;
        histogram_sum = 0;
    }
    if (!measuring) {
        warm_good += how_many;
        return;
    }
    if (now > stop_at) return; /* the drain at the end is not part of the rate */
    good += how_many;
    good_bytes += bytes;
    last_answer_at = now;
    uint64_t second = (now - measured_from) / 1000000000u;
    if (second < SECONDS_KEPT) per_second[second] += how_many;
}

static void print_result(const char *mode) {
    double took = (double)(last_answer_at - measured_from) / 1e9;
    double user = cpu_seconds(0) - cpu_user_from, sys = cpu_seconds(1) - cpu_sys_from;
    uint64_t all = good ? good : 1;
    printf("{\"mode\": \"%s\", \"ok\": %lu, \"sent\": %lu, \"answered\": %lu, \"unmatched\": %lu, \"seconds\": %.4f, ", mode,
           good, sent, answered, unmatched, took);
    printf("\"per_second\": %.1f, \"mb_per_second\": %.2f, ", took > 0 ? (double)good / took : 0.0,
           took > 0 ? (double)good_bytes / took / 1e6 : 0.0);
    printf("\"warmup_ok\": %lu, \"codes\": {", warm_good);
    int first = 1;
    for (int i = 0; i < 4096; i++)
        if (codes[i]) {
            printf("%s\"%d\": %lu", first ? "" : ", ", i, codes[i]);
            first = 0;
        }
    printf("}, \"latency_us\": {\"mean\": %.1f, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}, ",
           histogram_count ? histogram_sum / (double)histogram_count / 1000.0 : 0.0, latency_us(0.5), latency_us(0.9),
           latency_us(0.99), latency_us(0.999), (double)histogram_max / 1000.0);
    printf("\"generator_cpu\": {\"user_us_each\": %.3f, \"system_us_each\": %.3f, \"cores\": %.3f}, ",
           user * 1e6 / (double)all, sys * 1e6 / (double)all, took > 0 ? (user + sys) / took : 0.0);
    printf("\"calls\": {\"polls\": %lu, \"reads\": %lu, \"writes\": %lu}, \"each_second\": [", polls, reads, writes);
    for (uint64_t i = 0; i < (uint64_t)took && i < SECONDS_KEPT; i++) printf("%s%lu", i ? ", " : "", per_second[i]);
    printf("]}\n");
}

/* ---- signatures: HMAC-SHA1 in Base64, made before the clock runs ---- */

static uint32_t rotate(uint32_t v, int by) { return v << by | v >> (32 - by); }

static void sha1_block(uint32_t *h, const unsigned char *p) {
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int i = 0; i < 80; i++) w[i] = i < 16 ? get32(p + 4 * i) : rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 || i >= 60 ? b ^ c ^ d : (b & c) | (b & d) | (c & d);
        uint32_t k = i < 20 ? 0x5A827999u : i < 40 ? 0x6ED9EBA1u : i < 60 ? 0x8F1BBCDCu : 0xCA62C1D6u;
        uint32_t next = rotate(a, 5) + f + e + k + w[i];
        e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

static void sha1(const unsigned char *data, size_t length, unsigned char *digest) {
    uint32_t h[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};
    size_t whole = length / 64 * 64, rest = length - whole;
    for (size_t at = 0; at < whole; at += 64) sha1_block(h, data + at);
    unsigned char last[128] = {0};
    memcpy(last, data + whole, rest);
    last[rest] = 0x80;
    size_t padded = rest < 56 ? 64 : 128;
    put32(last + padded - 8, (uint32_t)(length >> 29));
    put32(last + padded - 4, (uint32_t)(length << 3));
    for (size_t at = 0; at < padded; at += 64) sha1_block(h, last + at);
    for (int i = 0; i < 5; i++) put32(digest + 4 * i, h[i]);
}

static void sign(const char *key, const unsigned char *data, size_t length, char *text) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char *inner = malloc(64 + length), outer[64 + 20], digest[21] = {0};
    if (strlen(key) > 64) die("--secret: at most 64 letters");
    memset(inner, 0x36, 64);
    memset(outer, 0x5C, 64);
    for (size_t i = 0; key[i]; i++) inner[i] ^= (unsigned char)key[i], outer[i] ^= (unsigned char)key[i];
    memcpy(inner + 64, data, length);
    sha1(inner, 64 + length, outer + 64);
    sha1(outer, sizeof outer, digest);
    free(inner);
    for (int i = 0; i < 21; i += 3, text += 4) {
        uint32_t v = (uint32_t)digest[i] << 16 | (uint32_t)digest[i + 1] << 8 | digest[i + 2];
        for (int j = 0; j < 4; j++) text[j] = letters[v >> (18 - 6 * j) & 63];
    }
    text[-1] = '=';
    *text = 0;
}

/* ---- send ---- */

enum { FIRST_OPAQUE = 10000000, OPAQUE_WIDTH = 8, ID_COUNTER_WIDTH = 12, KEY_WIDTH = 12, TOPIC_WIDTH = 5 };

static unsigned char *frame; /* what all of them are copies of */
static unsigned char *stage; /* frames one behind the other, patched and sent again and again */
static size_t frame_length, stage_frames, next_frame;
static unsigned char id_digits[ID_COUNTER_WIDTH]; /* of the next frame */
static size_t opaque_at, born_at, id_at, queue_at, topic_at, key_at;
static uint64_t send_ring;

static size_t position(const char *text, const char *mark, size_t after) {
    const char *at = strstr(text, mark);
    if (!at) die("template has no %s", mark);
    return (size_t)(at - text) + after;
}

/* Counting in digits costs an addition now and then a carry; a division for each digit is what it saves. */
static void count_up(unsigned char *digits, int width, const unsigned char *next) {
    int i = width - 1;
    while (i > 0 && next[digits[i]] == '0') digits[i--] = '0';
    digits[i] = next[digits[i]];
}

static unsigned char next_decimal[256], next_hex[256];

static void learn_to_count(void) {
    for (int i = 0; i < 16; i++) next_hex[(unsigned char)"0123456789ABCDEF"[i]] = (unsigned char)"123456789ABCDEF0"[i];
    for (int i = 0; i < 10; i++) next_decimal['0' + i] = (unsigned char)('0' + (i + 1) % 10);
}

/* What is signed: the values of the fields in the order of their names, and the body. */
static void sign_frames(size_t header_length, char *id, size_t counter_at) {
    size_t signature_at = 8 + position((char *)frame + 8, "\"Signature\":\"", 13);
    char *text = malloc(4096 + (size_t)body_bytes), signature[32];
    for (int i = 0; i < (int)stage_frames; i++) {
        put_hex(frame + id_at, ID_COUNTER_WIDTH, (uint64_t)i);
        put_hex((unsigned char *)id + counter_at, ID_COUNTER_WIDTH, (uint64_t)i);
        frame[queue_at] = (unsigned char)('0' + i % queues);
        int length = snprintf(text, 4096, "%s%s%sTBW1024%d0%.13s0UNIQ_KEY\001%s\002WAIT\001true\002%s0falsefalse%s", user, group,
                              topic, i % queues, (char *)frame + born_at, id, with_tags ? "TAGS\001TagA\002" : "", broker_name);
        memcpy(text + length, frame + 8 + header_length, (size_t)body_bytes);
        sign(secret, (unsigned char *)text, (size_t)length + (size_t)body_bytes, signature);
        memcpy(frame + signature_at, signature, 28);
        memcpy(stage + (size_t)i * frame_length, frame, frame_length);
    }
    free(text);
}

static void build_send_frame(void) {
    char header[2048], name[300], properties[600], id[64], key[64] = "", proof[400] = "";
    unsigned id_seed = (unsigned)getpid() & 0xFFFF;
    unsigned id_time = (unsigned)wall_ms();
    snprintf(name, sizeof name, topics > 1 ? "%s00000" : "%s", topic);
    /* unique key: address, process, class loader hash, then the 12 digits that count (time and counter in Java) */
    snprintf(id, sizeof id, "%s%04X%08X%012X", with_id56 ? "FD000000000000000000000000000002" : "0A000002", id_seed, id_time, 0);
    if (with_keys) snprintf(key, sizeof key, "KEYS\\u0001order-%012d\\u0002", 0);
    snprintf(properties, sizeof properties, "%sUNIQ_KEY\\u0001%s\\u0002WAIT\\u0001true\\u0002%s", key, id,
             with_tags ? "TAGS\\u0001TagA\\u0002" : "");
    if (user) snprintf(proof, sizeof proof, "\"AccessKey\":\"%s\",\"Signature\":\"%028d\",", user, 0);
    snprintf(header, sizeof header,
             "{\"code\":310,\"extFields\":{%s\"a\":\"%s\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"0\",\"f\":\"0\","
             "\"g\":\"%013lu\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\",\"n\":\"%s\"},\"flag\":0,"
             "\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}",
             proof, group, name, wall_ms(), properties, broker_name, FIRST_OPAQUE);
    size_t length = strlen(header);
    frame_length = 8 + length + (size_t)body_bytes;
    frame = malloc(frame_length);
    put32(frame, (uint32_t)(frame_length - 4));
    put32(frame + 4, (uint32_t)length);
    memcpy(frame + 8, header, length);
    for (int i = 0; i < body_bytes; i++) frame[8 + length + (size_t)i] = (unsigned char)('a' + i * 7 % 26);
    opaque_at = 8 + position(header, "\"opaque\":", 9);
    born_at = 8 + position(header, "\"g\":\"", 5);
    queue_at = 8 + position(header, "\"e\":\"", 5);
    id_at = 8 + position(header, "UNIQ_KEY\\u0001", 14) + strlen(id) - ID_COUNTER_WIDTH;
    topic_at = 8 + position(header, "\"b\":\"", 5) + strlen(topic);
    key_at = with_keys ? 8 + position(header, "\\u0001order-", 12) : 0;
    /* Enough for what a connection may send at once, if that fits; a multiple of the queues, of which each has its frames. */
    size_t fitting = STAGE_BYTES / frame_length;
    if (fitting > (size_t)(window / connections)) fitting = (size_t)(window / connections);
    stage_frames = fitting / (size_t)queues * (size_t)queues;
    if (stage_frames < fitting || !fitting) stage_frames += (size_t)queues;
    stage = malloc(stage_frames * frame_length);
    for (size_t i = 0; i < stage_frames; i++) memcpy(stage + i * frame_length, frame, frame_length);
    if (user) sign_frames(length, id, strlen(id) - ID_COUNTER_WIDTH);
}

/* Makes the frame at `p` the next send of a connection. */
static void patch(struct connection *c, unsigned char *p, const unsigned char *born) {
    memcpy(p + opaque_at, c->opaque_digits, OPAQUE_WIDTH);
    count_up(c->opaque_digits, OPAQUE_WIDTH, next_decimal);
    if (user) return;
    memcpy(p + id_at, id_digits, ID_COUNTER_WIDTH);
    count_up(id_digits, ID_COUNTER_WIDTH, next_hex);
    memcpy(p + born_at, born, 13);
    p[queue_at] = (unsigned char)('0' + sent / (uint64_t)topics % (uint64_t)queues);
    if (topics > 1) put_decimal(p + topic_at, TOPIC_WIDTH, sent % (uint64_t)topics);
    if (with_keys) put_decimal(p + key_at, KEY_WIDTH, sent);
}

static void top_up(struct connection *c) {
    uint64_t limit = count ? count : UINT64_MAX, now = now_ns();
    unsigned char born[13];
    put_decimal(born, 13, wall_ms());
    while (c->in_flight < c->allowed && sent < limit && now < stop_at && c->output_used == 0) {
        uint64_t n = (uint64_t)(c->allowed - c->in_flight);
        if (n > limit - sent) n = limit - sent;
        if (n > stage_frames) n = stage_frames;
        if (next_frame + n > stage_frames) next_frame = 0;
        unsigned char *first = stage + next_frame * frame_length, *p = first;
        for (; n; n--, p += frame_length) {
            uint64_t *slot = &c->sent_at[c->numbered & (send_ring - 1)];
            if (*slot) break; /* one of the oldest is not answered yet */
            *slot = now;
            patch(c, p, born);
            c->numbered++;
            next_frame++;
            c->in_flight++;
            sent++;
        }
        if (p == first) break;
        if (c->numbered > 89000000) die("more than 89 million sends over one connection");
        write_through(c, first, (size_t)(p - first));
    }
}

static void on_send_answer(struct connection *c, const struct answer *a, uint64_t now) {
    if (!(a->flag & 1)) return; /* a request of the broker's own */
    uint64_t index = (uint64_t)(a->opaque - FIRST_OPAQUE);
    uint64_t *slot = &c->sent_at[index & (send_ring - 1)];
    if (index >= c->numbered || index + send_ring < c->numbered || !*slot) {
        unmatched++;
        return;
    }
    record_latency(now - *slot);
    *slot = 0;
    c->in_flight--;
    answered++;
    codes[a->code >= 0 && a->code < 4096 ? a->code : 4095]++;
    if (a->code == 0) note_good(now, 1, (uint64_t)body_bytes);
}

/* Rests for as long as a quarter of the window takes to be answered, by the speed so far. A wake-up costs a broker on the
 * same core its turn and what it had in the cache. So there are as few as can be without letting a broker wait: it has
 * the other three quarters meanwhile. */
static void rest(void) {
    static uint64_t then, seen, pause;
    uint64_t now = now_ns(), quarter = (uint64_t)window / 4;
    if (answered - seen >= quarter) {
        if (then) pause = (now - then) * quarter / (answered - seen);
        if (pause > LONGEST_REST_NS) pause = LONGEST_REST_NS;
        then = now;
        seen = answered;
    }
    if (pause && now + pause < stop_at) nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
}

static int run_send(void) {
    if (queues > 10) die("send: --queues 1 to 10 (one digit)");
    if (window < connections) die("--window must be at least --connections");
    if (seconds <= 0 && !count) die("--seconds or --count is needed");
    build_send_frame();
    learn_to_count();
    memset(id_digits, '0', ID_COUNTER_WIDTH);
    for (send_ring = 1; send_ring < (uint64_t)(window / connections) * 2;) send_ring *= 2;
    for (int i = 0; i < connections; i++) {
        start_connection(&table[i], open_socket(i));
        table[i].allowed = window / connections;
        table[i].sent_at = calloc(send_ring, sizeof(uint64_t));
        put_decimal(table[i].opaque_digits, OPAQUE_WIDTH, FIRST_OPAQUE);
    }
    uint64_t limit = count ? count : UINT64_MAX;
    begin_period();
    for (int i = 0; i < connections; i++) top_up(&table[i]);
    struct epoll_event events[MAX_CONNECTIONS];
    while (answered < sent || (now_ns() < stop_at && (!count || sent < count))) {
        polls++;
        int n = epoll_wait(poller, events, MAX_CONNECTIONS, 10000);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("no answer for 10 s (%lu sent, %lu answered)", sent, answered);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush_output(c);
            if (events[i].events & ~(uint32_t)EPOLLOUT) read_input(c, on_send_answer);
            top_up(c);
        }
        if (window / connections >= LEAST_TO_REST && sent < limit) rest();
    }
    print_result("send");
    return 0;
}

/* ---- pull ---- */

struct queue {
    struct connection *c;
    long offset;
};

static struct queue queue_table[MAX_QUEUES];
static uint64_t pulls, sent_pull_at[MAX_QUEUES];
static long subscription_version;

static void write_request(struct connection *c, const char *header, const char *body) {
    size_t length = strlen(header), body_length = strlen(body), total = 8 + length + body_length;
    if (OUTPUT_BYTES - c->output_used < total) die("output full");
    unsigned char *p = c->output + c->output_used;
    put32(p, (uint32_t)(total - 4));
    put32(p + 4, (uint32_t)length);
    memcpy(p + 8, header, length);
    memcpy(p + 8 + length, body, body_length);
    c->output_used += total;
}

static void write_heartbeat(struct connection *c, int number) {
    char body[1024];
    snprintf(body, sizeof body,
             "{\"clientID\":\"10.0.0.2@%d#%d\",\"consumerDataSet\":[{\"consumeFromWhere\":\"CONSUME_FROM_FIRST_OFFSET\","
             "\"consumeType\":\"CONSUME_PASSIVELY\",\"groupName\":\"%s\",\"messageModel\":\"CLUSTERING\","
             "\"subscriptionDataSet\":[{\"classFilterMode\":false,\"codeSet\":[],\"expressionType\":\"TAG\",\"subString\":\"*\","
             "\"subVersion\":%ld,\"tagsSet\":[],\"topic\":\"%s\"}],\"unitMode\":false}],\"heartbeatFingerprint\":0,"
             "\"producerDataSet\":[],\"withoutSub\":false}",
             (int)getpid(), number, group, subscription_version, topic);
    write_request(c, "{\"code\":34,\"flag\":0,\"language\":\"JAVA\",\"opaque\":9999999,\"serializeTypeCurrentRPC\":\"JSON\","
                     "\"version\":513}", body);
}

static void write_pull(int number) {
    char header[1024];
    struct queue *q = &queue_table[number];
    snprintf(header, sizeof header,
             "{\"code\":11,\"extFields\":{\"queueId\":\"%d\",\"maxMsgBytes\":\"262144\",\"maxMsgNums\":\"%d\",\"sysFlag\":\"2\","
             "\"suspendTimeoutMillis\":\"15000\",\"commitOffset\":\"0\",\"bname\":\"%s\",\"topic\":\"%s\",\"queueOffset\":\"%ld\","
             "\"expressionType\":\"TAG\",\"subVersion\":\"%ld\",\"consumerGroup\":\"%s\"},\"flag\":0,\"language\":\"JAVA\","
             "\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}",
             number, batch, broker_name, topic, q->offset, subscription_version, group, FIRST_OPAQUE + number);
    write_request(q->c, header, "");
    sent_pull_at[number] = now_ns();
    q->c->in_flight++;
    sent++;
}

static void on_pull_answer(struct connection *c, const struct answer *a, uint64_t now) {
    if (!(a->flag & 1)) return; /* "the group's members changed" */
    if (a->opaque == 9999999) {
        if (a->code) die("heartbeat refused: %.*s", (int)a->header_length, a->header);
        for (int i = 0; i < queues; i++)
            if (queue_table[i].c == c) write_pull(i);
        return;
    }
    long number = a->opaque - FIRST_OPAQUE;
    if (number < 0 || number >= queues) die("answer to a pull never sent: %.*s", (int)a->header_length, a->header);
    answered++;
    c->in_flight--;
    codes[a->code >= 0 && a->code < 4096 ? a->code : 4095]++;
    struct queue *q = &queue_table[number];
    if (a->code == 0) {
        record_latency(now - sent_pull_at[number]);
        uint64_t messages = 0;
        for (size_t at = 0; at < a->body_length; messages++) {
            if (a->body_length - at < 91) die("cut record in a pull answer");
            uint32_t size = get32(a->body + at);
            if (size < 91 || size > a->body_length - at || get32(a->body + at + 4) != 0xDAA320A7u) die("bad record");
            at += size;
        }
        long next = field_number(a->header, a->header_length, "\"nextBeginOffset\":");
        long end = field_number(a->header, a->header_length, "\"maxOffset\":");
        if (next != q->offset + (long)messages) die("nextBeginOffset %ld after %lu messages from %ld", next, messages, q->offset);
        pulls++;
        note_good(now, messages, a->body_length);
        q->offset = next >= end ? 0 : next;
    } else if (a->code == 20 || a->code == 21) {
        q->offset = field_number(a->header, a->header_length, "\"nextBeginOffset\":");
    } else if (a->code != 25) { /* 25: the heartbeat has not been seen yet, ask again */
        die("pull refused: %.*s", (int)a->header_length, a->header);
    }
    if (now < stop_at && (!count || good < count)) write_pull((int)number);
}

static int run_pull(void) {
    if (seconds <= 0 && !count) die("--seconds or --count is needed");
    subscription_version = (long)wall_ms();
    if (connections > queues) connections = queues;
    for (int i = 0; i < connections; i++) start_connection(&table[i], open_socket(i));
    for (int i = 0; i < queues; i++) queue_table[i].c = &table[i % connections];
    begin_period();
    for (int i = 0; i < connections; i++) {
        write_heartbeat(&table[i], i);
        flush_output(&table[i]);
    }
    struct epoll_event events[MAX_CONNECTIONS];
    int open_pulls = 1;
    while (open_pulls) {
        polls++;
        int n = epoll_wait(poller, events, MAX_CONNECTIONS, 20000);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("no answer for 20 s (%lu pulls sent, %lu answered)", sent, answered);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush_output(c);
            if (events[i].events & ~(uint32_t)EPOLLOUT) read_input(c, on_pull_answer);
            if (c->output_used && !c->waiting_to_write) flush_output(c);
        }
        open_pulls = !sent;
        for (int i = 0; i < connections; i++) open_pulls |= table[i].in_flight > 0;
    }
    print_result("pull");
    return 0;
}

/* ---- sink ---- */

static void on_sink_request(struct connection *c, const struct answer *a, uint64_t now) {
    static const char before[] =
        "{\"code\":0,\"extFields\":{\"queueId\":\"3\",\"transactionId\":\"0A0000020233115FFD2B2749D4F44600\","
        "\"msgId\":\"7F000001000051AF0000000000000000\",\"TRACE_ON\":\"true\",\"MSG_REGION\":\"DefaultRegion\","
        "\"queueOffset\":\"1234567\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":";
    static const char after[] = ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}";
    (void)now;
    char header[600];
    memcpy(header, before, sizeof before - 1);
    size_t length = sizeof before - 1;
    put_decimal((unsigned char *)header + length, OPAQUE_WIDTH, (uint64_t)a->opaque);
    length += OPAQUE_WIDTH;
    memcpy(header + length, after, sizeof after);
    if (OUTPUT_BYTES - c->output_used < 1024) flush_output(c);
    if (OUTPUT_BYTES - c->output_used < 1024) die("the reader does not keep up");
    write_request(c, header, "");
}

static int run_sink(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)ports[0])};
    inet_pton(AF_INET, host, &address.sin_addr);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address)) die("bind: %s", strerror(errno));
    listen(listener, 64);
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = NULL}}, events[MAX_CONNECTIONS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    printf("ready\n");
    fflush(stdout);
    int opened = 0, closed = 0;
    while (!opened || closed < opened) { /* ends when every client has gone */
        polls++;
        int n = epoll_wait(poller, events, MAX_CONNECTIONS, 60000);
        if (n == 0) break;
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                int fd = accept(listener, NULL, NULL);
                if (fd < 0 || opened >= MAX_CONNECTIONS) die("accept");
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                start_connection(&table[opened++], fd);
                continue;
            }
            char peek;
            if (recv(c->fd, &peek, 1, MSG_PEEK) == 0) {
                epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, NULL);
                close(c->fd);
                closed++;
                continue;
            }
            if (events[i].events & EPOLLOUT) flush_output(c);
            if (events[i].events & EPOLLIN) read_input(c, on_sink_request);
            if (c->output_used && !c->waiting_to_write) flush_output(c);
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) die("usage: loadgen send|pull|sink --port N [options]");
    signal(SIGPIPE, SIG_IGN);
    parse_options(argc, argv);
    poller = epoll_create1(0);
    if (!strcmp(argv[1], "send")) return run_send();
    if (!strcmp(argv[1], "pull")) return run_pull();
    if (!strcmp(argv[1], "sink")) return run_sink();
    die("no such mode: %s", argv[1]);
    return 2;
}
