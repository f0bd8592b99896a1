/* bound FILE PLACE: serves FILE over the regular file PLACE by FUSE and does nothing but copy. What a FUSE
 * server adds to a disk at the least, with three system calls a request. Needs root. Ends with SIGTERM. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { THREADS = 32, PAGE = 4096, DATA_MAX = 1 << 20 };

static int image, device;
static struct stat status;

/* Carries a request out. Returns the length of the answer's body, or a negative error. */
static long answer(struct fuse_in_header *head, char *data, char *out) {
    void *in = head + 1;
    memset(out, 0, PAGE);
    switch (head->opcode) {
    case FUSE_INIT: {
        struct fuse_init_in *asked = in;
        struct fuse_init_out *init = (void *)out;
        init->major = FUSE_KERNEL_VERSION;
        init->minor = 31;
        init->max_readahead = asked->max_readahead;
        init->flags = asked->flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO | FUSE_MAX_PAGES);
        init->max_background = 256;
        init->congestion_threshold = 200;
        init->max_write = DATA_MAX;
        init->max_pages = DATA_MAX / PAGE;
        return sizeof *init;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out *got = (void *)out;
        got->attr_valid = 3600;
        got->attr.ino = 1;
        got->attr.size = status.st_size;
        got->attr.mode = S_IFREG | 0600;
        got->attr.nlink = 1;
        got->attr.blksize = PAGE;
        return sizeof *got;
    }
    case FUSE_OPEN:
        ((struct fuse_open_out *)(void *)out)->open_flags = FOPEN_DIRECT_IO;
        return sizeof(struct fuse_open_out);
    case FUSE_READ: {
        struct fuse_read_in *read = in;
        long count = read->size > DATA_MAX ? -1 : pread(image, out, read->size, read->offset);
        return count < 0 ? -EIO : count;
    }
    case FUSE_WRITE: {
        struct fuse_write_in *write = in;
        long count = pwrite(image, data, write->size, write->offset);
        ((struct fuse_write_out *)(void *)out)->size = count;
        return count < 0 ? -EIO : (long)sizeof(struct fuse_write_out);
    }
    case FUSE_FSYNC:
        return fdatasync(image) ? -EIO : 0;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        return 0;
    case FUSE_STATFS:
        return sizeof(struct fuse_statfs_out);
    default:
        return -ENOSYS;
    }
}

static void *serve(void *unused) {
    /* A write's data follows two structures; so it begins on a page. */
    size_t front = sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in);
    char *first = aligned_alloc(PAGE, PAGE), *data = aligned_alloc(PAGE, DATA_MAX + PAGE);
    char *out = aligned_alloc(PAGE, DATA_MAX);
    if (!first || !data || !out) exit(1);
    for (;;) {
        struct iovec in[2] = {{first, front}, {data, DATA_MAX + PAGE}};
        if (readv(device, in, 2) < 0) {
            if (errno == EINTR || errno == ENOENT) continue;
            return unused;
        }
        struct fuse_in_header *head = (void *)first;
        if (head->opcode == FUSE_FORGET || head->opcode == FUSE_BATCH_FORGET || head->opcode == FUSE_INTERRUPT)
            continue;
        long len = answer(head, data, out);
        struct fuse_out_header say = {sizeof say, 0, head->unique};
        if (len < 0) {
            say.error = len;
            len = 0;
        }
        say.len += len;
        struct iovec parts[2] = {{&say, sizeof say}, {out, len}};
        if (writev(device, parts, 2) < 0 && errno == ENODEV) return unused;
    }
}

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: bound FILE PLACE\n");
        return 1;
    }
    image = open(words[1], O_RDWR | O_DIRECT);
    device = open("/dev/fuse", O_RDWR);
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=100000,user_id=0,group_id=0", device);
    if (image < 0 || device < 0 || fstat(image, &status) || mount("bound", words[2], "fuse", 0, options)) {
        perror("bound");
        return 1;
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    for (int index = 0; index < THREADS; index++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, NULL)) return 1;
    }
    int signal;
    sigwait(&ends, &signal);
    return umount2(words[2], MNT_DETACH) ? 1 : 0;
}
