/* bound-nbd FILE SOCKET: serves FILE by NBD on a Unix socket and does nothing but copy. What an NBD server adds
 * to a disk at the least, with three system calls a request. One client at a time. Ends with SIGTERM. */
#define _GNU_SOURCE
#include <endian.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { THREADS = 32, PAGE = 4096, DATA_MAX = 1 << 20 };
enum { FIXED = 1, NO_ZEROES = 2 };
enum { EXPORT_NAME = 1, ABORT = 2, GO = 7 };
enum { READ = 0, WRITE = 1, DISCONNECT = 2, FLUSH = 3 };
enum { HAS_FLAGS = 1, FLUSHES = 4 };
static const uint64_t MAGIC = 0x4e42444d41474943, OPTION = 0x49484156454f5054, OPTION_REPLY = 0x3e889045565a9;
static const uint32_t ACK = 1, TELLS = 3, UNSUPPORTED = 0x80000001, REPLY = 0x67446698;

#define PACKED struct __attribute__((packed))

PACKED request { uint32_t magic; uint16_t flags, kind; uint64_t cookie, offset; uint32_t len; };

static int image, client;
static uint64_t size;
static pthread_mutex_t receiving = PTHREAD_MUTEX_INITIALIZER, sending = PTHREAD_MUTEX_INITIALIZER;

/* Whether the client is still there. */
static int take(void *at, size_t len) { return !len || recv(client, at, len, MSG_WAITALL) == (ssize_t)len; }

static int give(const void *at, size_t len) { return !len || send(client, at, len, MSG_NOSIGNAL) == (ssize_t)len; }

static int answer_option(uint32_t option, uint32_t kind, const void *data, uint32_t len) {
    PACKED { uint64_t magic; uint32_t option, kind, len; }
    head = {htobe64(OPTION_REPLY), option, htobe32(kind), htobe32(len)};
    return give(&head, sizeof head) && give(data, len);
}

/* Whether the client wants to go on. */
static int negotiate(void) {
    PACKED { uint64_t magic, option; uint16_t flags; }
    hello = {htobe64(MAGIC), htobe64(OPTION), htobe16(FIXED | NO_ZEROES)};
    PACKED { uint16_t kind; uint64_t size; uint16_t flags; }
    export = {0, htobe64(size), htobe16(HAS_FLAGS | FLUSHES)};
    uint32_t flags;
    if (!give(&hello, sizeof hello) || !take(&flags, sizeof flags)) return 0;
    for (;;) {
        PACKED { uint64_t magic; uint32_t option, len; }
        asked;
        char rest[PAGE];
        if (!take(&asked, sizeof asked) || be64toh(asked.magic) != OPTION) return 0;
        uint32_t len = be32toh(asked.len);
        if (len > sizeof rest || !take(rest, len)) return 0;
        switch (be32toh(asked.option)) {
        case EXPORT_NAME:
            return give(&export.size, sizeof export - sizeof export.kind);
        case GO:
            return answer_option(asked.option, TELLS, &export, sizeof export) &&
                   answer_option(asked.option, ACK, NULL, 0);
        case ABORT:
            return answer_option(asked.option, ACK, NULL, 0) && 0;
        default:
            if (!answer_option(asked.option, UNSUPPORTED, NULL, 0)) return 0;
        }
    }
}

/* Takes the next request and a write's data, while no other thread does. */
static int next(struct request *asked, char *data) {
    if (!take(asked, sizeof *asked)) return 0;
    uint32_t kind = be16toh(asked->kind), len = be32toh(asked->len);
    return kind != DISCONNECT && len <= DATA_MAX && (kind != WRITE || take(data, len));
}

static void *serve(void *unused) {
    char *data = aligned_alloc(PAGE, DATA_MAX);
    if (!data) exit(1);
    for (;;) {
        struct request asked;
        pthread_mutex_lock(&receiving);
        int goes_on = next(&asked, data);
        /* The others notice that it is over. */
        if (!goes_on) shutdown(client, SHUT_RD);
        pthread_mutex_unlock(&receiving);
        if (!goes_on) break;
        ssize_t len = be32toh(asked.len), count = -1;
        off_t offset = be64toh(asked.offset);
        int is_read = be16toh(asked.kind) == READ;
        if (is_read) count = pread(image, data, len, offset);
        if (be16toh(asked.kind) == WRITE) count = pwrite(image, data, len, offset);
        if (be16toh(asked.kind) == FLUSH && !fdatasync(image)) count = len;
        PACKED { uint32_t magic, error; uint64_t cookie; }
        head = {htobe32(REPLY), htobe32(count == len ? 0 : 5), asked.cookie};
        struct iovec parts[2] = {{&head, sizeof head}, {data, is_read && count == len ? len : 0}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t left = parts[0].iov_len + parts[1].iov_len;
        pthread_mutex_lock(&sending);
        if (sendmsg(client, &message, MSG_NOSIGNAL) != left) shutdown(client, SHUT_RD);
        pthread_mutex_unlock(&sending);
    }
    free(data);
    return unused;
}

int main(int count, char **words) {
    struct stat status;
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    if (count != 3 || strlen(words[2]) >= sizeof place.sun_path) {
        fprintf(stderr, "usage: bound-nbd FILE SOCKET\n");
        return 1;
    }
    strcpy(place.sun_path, words[2]);
    image = open(words[1], O_RDWR | O_DIRECT);
    int door = socket(AF_UNIX, SOCK_STREAM, 0);
    if (image < 0 || fstat(image, &status) || bind(door, (struct sockaddr *)&place, sizeof place) || listen(door, 8)) {
        perror("bound-nbd");
        return 1;
    }
    size = status.st_size;
    for (; (client = accept(door, NULL, NULL)) >= 0; close(client)) {
        if (!negotiate()) continue;
        pthread_t threads[THREADS];
        for (int index = 0; index < THREADS; index++)
            if (pthread_create(&threads[index], NULL, serve, NULL)) return 1;
        for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
    }
    return 1;
}
