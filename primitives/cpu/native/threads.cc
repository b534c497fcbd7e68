// Blocks of work are handed out by a counter.  The calling thread works too, so that it never waits
// for a thread that waits for it; threads that come late find nothing to do.  At the end it looks for
// the others for about 10 microseconds, and then sleeps.  Where other calls are at work, as those of
// other devices on this CPU, each has its share of the threads: a block that a thread has taken whose
// processor another one has is one to wait for.

#include "threads.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace repjax {

std::atomic<int64_t> AtWork::calls{0};

namespace {

struct Work {
  std::function<void(int64_t)> block;
  int64_t blocks;
  std::atomic<int64_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable all_done;

  Work(std::function<void(int64_t)> block, int64_t blocks)
      : block(std::move(block)), blocks(blocks) {}

  void run() {
    int64_t mine = 0;
    for (int64_t i; (i = next.fetch_add(1)) < blocks; ++mine) block(i);
    if (mine == 0 || done.fetch_add(mine) + mine < blocks) return;
    std::lock_guard<std::mutex> lock(mutex);
    all_done.notify_all();
  }

  bool is_done() const { return done.load() == blocks; }

  void wait() {
    for (int i = 0; i < kLooks && !is_done(); ++i) pause();
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return is_done(); });
  }

 private:
  static constexpr int kLooks = 1 << 10;
};

}  // namespace

int64_t useful_threads(xla::ffi::ThreadPool* pool, double work, int64_t least) {
  if (!pool || work < 2.0 * least) return 1;
  const double useful = std::min<double>(pool->num_threads(), work / least);
  return std::max<int64_t>(1, int64_t(useful));
}

void hand_out(xla::ffi::ThreadPool* pool, int64_t threads, int64_t blocks,
              std::function<void(int64_t)> block) {
  const AtWork at_work;
  auto work = std::make_shared<Work>(std::move(block), blocks);
  const int64_t asked = std::min({threads, blocks, pool->num_threads() / AtWork::calls});
  for (int64_t i = 1; i < asked; ++i) pool->Schedule([work] { work->run(); });
  work->run();
  work->wait();
}

void in_huge_pages(void* data, size_t bytes) {
#if defined(__linux__)
  constexpr size_t kLeast = 1 << 22;  // bytes that have some huge pages
  if (bytes < kLeast) return;
  static const uintptr_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page + page;
  // Only a hint: where there are none, the call fails and nothing changes.
  madvise(reinterpret_cast<void*>(begin), (bytes - page) / page * page, MADV_HUGEPAGE);
#endif
}

}  // namespace repjax
