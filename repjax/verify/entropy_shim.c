/* Entropy that libraries draw through the C library, recorded and replayed.
 *
 * Loaded by LD_PRELOAD into the processes of `repjax record` and `repjax replay`.  It takes the
 * place of getrandom, getentropy, arc4random, and of open and read, and fopen, for /dev/urandom and
 * /dev/random.  What a program draws by a system call of its own, by an instruction of the CPU, or
 * through a C library that is linked statically, does not pass here.
 *
 * The folder of the session stands in REPJAX_ENTROPY, the name of the process in
 * REPJAX_ENTROPY_PROCESS; Python says later names by repjax_entropy_process.  Draws are written
 * into the file HASH-N.native of the folder, by one call each: stream, source, place, length and
 * bytes in hexadecimal digits, with tabs between them.  A file HASH.expected of the same form,
 * without the first line, which has the process, is what a replay serves.  Each thread has a
 * stream: "native", or "native:NAME".
 *
 * Plain C, nothing of Python. */

#define _GNU_SOURCE
/* With these, the headers define or rename functions that are defined here. */
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS
#undef _TIME_BITS
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <unistd.h>

/* Which sources this was compiled from: verify/recordings.py looks for it. */
__attribute__((used)) static const char sources[] = "repjax entropy shim " REPJAX_SOURCES;

enum { NAME = 512, STREAM = 96, THREADS = 4096, FILES = 1 << 16, MOST_BYTES = 1 << 24 };

static enum { OFF, RECORD, REPLAY } mode = OFF;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static char process[NAME];
static int output = -1;
static char *expected; /* the file, or NULL before it is read */
static unsigned generation, forks;
static struct {
  char name[STREAM];
  unsigned count;
} threads[THREADS];
static unsigned char is_device[FILES];

static __thread int paused;
static __thread char stream[STREAM];
static __thread const char *next;
static __thread unsigned thread_generation = UINT_MAX;

/* --- the system, without what stands in its place here ----------------------------------- */

static long raw_entropy(void *to, size_t size, unsigned flags) {
  return syscall(SYS_getrandom, to, size, flags);
}

/* All of it, whatever interrupts. */
static int fill(void *to, size_t size) {
  for (size_t done = 0; done < size;) {
    long n = raw_entropy((char *)to + done, size - done, 0);
    if (n < 0 && errno != EINTR) return -1;
    done += n > 0 ? (size_t)n : 0;
  }
  return 0;
}

static int raw_open(const char *path, int flags, int permissions) {
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, permissions);
}

static void complain(const char *format, ...) {
  char text[4 * NAME];
  va_list list;
  va_start(list, format);
  int n = vsnprintf(text, sizeof text, format, list);
  va_end(list);
  n = n < (int)sizeof text ? n : (int)sizeof text - 1;
  if (write(STDERR_FILENO, text, (size_t)n) < 0) return;
}

/* --- names ------------------------------------------------------------------------------- */

/* FNV-1a, as verify/entropy.py has it. */
static uint64_t hash(const char *name) {
  uint64_t total = 0xcbf29ce484222325u;
  for (; *name; name++) total = (total ^ (unsigned char)*name) * 0x100000001b3u;
  return total;
}

static void new_process(const char *name) {
  snprintf(process, sizeof process, "%s", name);
  if (output >= 0) close(output);
  output = -1;
  free(expected);
  expected = NULL;
  memset(threads, 0, sizeof threads);
  generation++;
}

/* A file for this process, whose name gets a number where others have had it. */
static int claim(void) {
  char path[PATH_MAX + 64], base[NAME];
  snprintf(base, sizeof base, "%s", process);
  for (unsigned n = 1; output < 0; n++) {
    snprintf(path, sizeof path, "%s/%016llx-%u.native", folder, (unsigned long long)hash(base), n);
    output = raw_open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (output < 0 && errno != EEXIST) return -1;
    if (output >= 0 && n > 1) snprintf(process, sizeof process, "%.400s#%u", base, n);
  }
  return dprintf(output, "%s\n", process) < 0 ? -1 : 0;
}

/* The stream of this thread. */
static void name_thread(void) {
  if (thread_generation == generation) return;
  char name[STREAM] = "native";
  if ((pid_t)syscall(SYS_gettid) != getpid()) {
    char own[17] = "";
    prctl(PR_GET_NAME, own);
    for (char *c = own; *c; c++) *c = *c < ' ' || *c > '~' ? '?' : *c;
    snprintf(name, sizeof name, "native:%s", own);
  }
  unsigned i = 0;
  while (i < THREADS - 1 && threads[i].count && strcmp(threads[i].name, name)) i++;
  snprintf(threads[i].name, STREAM, "%s", name);
  if (++threads[i].count > 1)
    snprintf(stream, sizeof stream, "%.64s#%u", name, threads[i].count);
  else
    snprintf(stream, sizeof stream, "%s", name);
  next = NULL;
  thread_generation = generation;
}

static void place_of(const void *caller, char *place, size_t size) {
  Dl_info info;
  if (!dladdr(caller, &info) || !info.dli_fname) {
    snprintf(place, size, "unknown code");
    return;
  }
  const char *name = strrchr(info.dli_fname, '/');
  snprintf(place, size, "%.200s+0x%lx", name ? name + 1 : info.dli_fname,
           (unsigned long)((const char *)caller - (const char *)info.dli_fbase));
  for (char *c = place; *c; c++) *c = *c < ' ' || *c > '~' ? '?' : *c;
}

/* --- draws ------------------------------------------------------------------------------- */

static int read_expected(void) {
  char path[PATH_MAX + 64];
  struct stat status;
  snprintf(path, sizeof path, "%s/%016llx.expected", folder, (unsigned long long)hash(process));
  int file = raw_open(path, O_RDONLY | O_CLOEXEC, 0);
  if (file < 0) {
    expected = calloc(1, 1);
    return expected ? 0 : -1;
  }
  size_t size = fstat(file, &status) ? 0 : (size_t)status.st_size, done = 0;
  expected = malloc(size + 1);
  while (expected && done < size) {
    long n = syscall(SYS_read, file, expected + done, size - done);
    if (n <= 0) break;
    done += (size_t)n;
  }
  if (expected) expected[done] = 0;
  close(file);
  return expected && done == size ? 0 : -1;
}

static unsigned digit(char c) { return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10); }

/* The bytes that this thread's stream has next, if they are of this source and length. */
static int serve(const char *source, const char *place, unsigned char *to, size_t size) {
  const char *line = next ? next : expected;
  for (const char *end; *line; line = end + 1) {
    end = strchr(line, '\n');
    if (!end) break;
    size_t n = strlen(stream);
    if (strncmp(line, stream, n) || line[n] != '\t') continue;
    char its_source[64] = "", its_place[256] = "";
    unsigned long its_size = 0;
    int at = 0;
    sscanf(line + n + 1, "%63[^\t]\t%255[^\t]\t%lu\t%n", its_source, its_place, &its_size, &at);
    if (!at || strcmp(its_source, source) || its_size != size) {
      complain("repjax: draw of %s: expected %lu bytes of %s, as at %s of the recording, received "
               "%zu bytes of %s at %s\n",
               stream, its_size, its_source, its_place, size, source, place);
      return -1;
    }
    const char *hex = line + n + 1 + at;
    for (size_t i = 0; i < size; i++)
      to[i] = (unsigned char)(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
    next = end + 1;
    return 0;
  }
  complain("repjax: draw of %s: expected no more draws than recorded, received %zu bytes of %s at "
           "%s\n", stream, size, source, place);
  return -1;
}

static int note(const char *source, const char *place, const unsigned char *data, size_t size,
                int is_served) {
  static const char digits[] = "0123456789abcdef";
  char *line = malloc(2 * size + 1024);
  if (!line) return -1;
  size_t n = (size_t)snprintf(line, 1000, "%s\t%s\t%s\t%zu\t", stream, source, place, size);
  if (!is_served) line[n++] = '-';
  for (size_t i = 0; i < size && is_served; i++) {
    line[n++] = digits[data[i] >> 4];
    line[n++] = digits[data[i] & 15];
  }
  line[n++] = '\n';
  int failed = syscall(SYS_write, output, line, n) != (long)n;
  free(line);
  return failed ? -1 : 0;
}

/* 0, or -1 with errno. */
static int draw(const char *source, void *to, size_t size, const void *caller) {
  if (mode == OFF || paused) return fill(to, size);
  int failed = 0;
  pthread_mutex_lock(&lock);
  name_thread();
  char place[256];
  place_of(caller, place, sizeof place);
  if (size > MOST_BYTES) {
    complain("repjax: %s at %s: expected at most %d bytes at once, received %zu\n", source, place,
             MOST_BYTES, size);
    failed = -1;
  }
  if (!failed && output < 0) failed = claim();
  if (!failed && mode == REPLAY && !expected) failed = read_expected();
  if (!failed) {
    failed = mode == RECORD ? fill(to, size) : serve(source, place, to, size);
    if (note(source, place, to, size, !failed)) failed = -1;
  }
  pthread_mutex_unlock(&lock);
  if (failed) errno = EIO;
  return failed;
}

/* --- processes --------------------------------------------------------------------------- */

static void before_fork(void) {
  pthread_mutex_lock(&lock);
  forks++;
}

static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
  char name[NAME];
  snprintf(name, sizeof name, "%.400s/fork-%u", process, forks);
  pthread_mutex_init(&lock, NULL);
  new_process(name);
  forks = 0;
}

__attribute__((constructor)) static void start(void) {
  const char *where = getenv("REPJAX_ENTROPY"), *name = getenv("REPJAX_ENTROPY_PROCESS");
  char path[PATH_MAX + 16];
  if (!where || strlen(where) >= PATH_MAX) return;
  snprintf(folder, sizeof folder, "%s", where);
  new_process(name ? name : "main");
  snprintf(path, sizeof path, "%s/replay", folder);
  mode = access(path, F_OK) ? RECORD : REPLAY;
  pthread_atfork(before_fork, in_parent, in_child);
}

/* What Python calls: its process has this name, or none and draws for itself; and so does this
 * thread. */
void repjax_entropy_process(const char *name) {
  pthread_mutex_lock(&lock);
  new_process(name);
  if (!*name) mode = OFF;
  pthread_mutex_unlock(&lock);
}

void repjax_entropy_pause(int by) { paused += by; }

/* --- what stands in the place of the C library ------------------------------------------- */

#define CALLER __builtin_return_address(0)
#define STOCK(name) \
  static __typeof__(name) *stock; \
  if (!stock) stock = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t getrandom(void *to, size_t size, unsigned flags) {
  if (mode == OFF || paused) return raw_entropy(to, size, flags);
  return draw("getrandom", to, size, CALLER) ? -1 : (ssize_t)size;
}

int getentropy(void *to, size_t size) {
  if (size > 256) {
    errno = EIO;
    return -1;
  }
  return draw("getentropy", to, size, CALLER);
}

/* These cannot say that they failed. */
static void must_draw(void *to, size_t size, const void *caller) {
  if (draw("arc4random", to, size, caller)) abort();
}

void arc4random_buf(void *to, size_t size) { must_draw(to, size, CALLER); }

uint32_t arc4random(void) {
  uint32_t x;
  must_draw(&x, sizeof x, CALLER);
  return x;
}

uint32_t arc4random_uniform(uint32_t bound) {
  uint32_t x, least = bound > 1 ? -bound % bound : 0; /* 2**32 mod bound */
  do must_draw(&x, sizeof x, CALLER);
  while (x < least);
  return bound > 1 ? x % bound : 0;
}

static int is_device_name(const char *path) {
  return path && (!strcmp(path, "/dev/urandom") || !strcmp(path, "/dev/random"));
}

static int noted(const char *path, int file) {
  if (file >= 0 && file < FILES && is_device_name(path)) is_device[file] = 1;
  return file;
}

/* Whether a file is a device of entropy: opened as such, and not closed since. */
static int is_open_device(int file) {
  struct stat status;
  if (file < 0 || file >= FILES || !is_device[file]) return 0;
  if (!fstat(file, &status) && S_ISCHR(status.st_mode) && major(status.st_rdev) == 1 &&
      (minor(status.st_rdev) == 8 || minor(status.st_rdev) == 9))
    return 1;
  is_device[file] = 0;
  return 0;
}

static ssize_t read_device(void *to, size_t size, const void *caller) {
  size = size < MOST_BYTES ? size : MOST_BYTES;
  return draw("/dev/urandom", to, size, caller) ? -1 : (ssize_t)size;
}

#define PERMISSIONS(flags) \
  int permissions = 0; \
  if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
    va_list list; \
    va_start(list, flags); \
    permissions = va_arg(list, int); \
    va_end(list); \
  }

int open(const char *path, int flags, ...) {
  STOCK(open);
  PERMISSIONS(flags)
  return noted(path, stock(path, flags, permissions));
}

int open64(const char *path, int flags, ...) {
  STOCK(open64);
  PERMISSIONS(flags)
  return noted(path, stock(path, flags, permissions));
}

int openat(int at, const char *path, int flags, ...) {
  STOCK(openat);
  PERMISSIONS(flags)
  return noted(path, stock(at, path, flags, permissions));
}

int openat64(int at, const char *path, int flags, ...) {
  STOCK(openat64);
  PERMISSIONS(flags)
  return noted(path, stock(at, path, flags, permissions));
}

int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }

ssize_t read(int file, void *to, size_t size) {
  STOCK(read);
  if (mode != OFF && !paused && is_open_device(file)) return read_device(to, size, CALLER);
  return stock(file, to, size);
}

ssize_t __read_chk(int file, void *to, size_t size, size_t room) {
  if (size > room) abort();
  if (mode != OFF && !paused && is_open_device(file)) return read_device(to, size, CALLER);
  STOCK(read);
  return stock(file, to, size);
}

static ssize_t read_stream(void *cookie, char *to, size_t size) {
  return read_device(to, size, cookie);
}

static FILE *open_stream(const char *path, const char *how, const void *caller) {
  if (mode == OFF || !is_device_name(path) || strpbrk(how, "wa+")) return NULL;
  return fopencookie((void *)caller, how, (cookie_io_functions_t){.read = read_stream});
}

FILE *fopen(const char *path, const char *how) {
  STOCK(fopen);
  FILE *ours = open_stream(path, how, CALLER);
  return ours ? ours : stock(path, how);
}

FILE *fopen64(const char *path, const char *how) {
  STOCK(fopen64);
  FILE *ours = open_stream(path, how, CALLER);
  return ours ? ours : stock(path, how);
}
