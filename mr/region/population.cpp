// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/everything.hpp>
#include <weft/mr/region/population.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/system_calls.hpp>
#include <weft/runtime/worker_pool.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>

namespace weft::mr::detail {
namespace {

constexpr std::uintptr_t huge_page_bytes = std::uintptr_t{2} << 20;

std::uint64_t sum_of(std::span<const std::span<std::byte>> ranges) noexcept {
  std::uint64_t sum = 0;
  for (const std::span<std::byte> range : ranges) sum += range.size();
  return sum;
}

// bind_window counts as writing, because peers may write through windows.
constexpr bool is_written(usage purpose) noexcept {
  return includes(rights_for(purpose), access::local_write) || overlaps(purpose, usage::bind_window);
}

}  // namespace

population::population(std::span<const std::span<std::byte>> ranges, const registration_options& options) noexcept
    : ranges_(ranges),
      progress_(options.progress),
      calls_(options.system_calls != nullptr ? *options.system_calls : system_calls::kernel()),
      advice_(is_written(options.usage) ? MADV_POPULATE_WRITE : MADV_POPULATE_READ),
      bytes_(sum_of(ranges)),
      pieces_(static_cast<std::size_t>((bytes_ + piece_bytes - 1) / piece_bytes)) {}

bool population::wanted(const mr::registrar& home, std::span<const std::span<std::byte>> ranges,
                        const registration_options& options) noexcept {
  return home.pins() && !options.on_demand && !options.dmabuf && options.device == nullptr &&
         sum_of(ranges) >= least_bytes && !is_everything(ranges.front());
}

bool population::next() noexcept {
  const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= pieces_) return false;
  const std::uint64_t from = std::uint64_t{index} * piece_bytes;
  const std::uint64_t length = std::min<std::uint64_t>(piece_bytes, bytes_ - from);
  provide(from, length);
  if (progress_ != nullptr) progress_->fetch_add(static_cast<std::size_t>(length));
  return true;
}

void population::provide(std::uint64_t from, std::uint64_t length) const noexcept {
  for (const std::span<std::byte> range : ranges_) {
    if (length == 0) return;
    if (from >= range.size()) {
      from -= range.size();
      continue;
    }
    const auto here = range.subspan(from, std::min<std::uint64_t>(length, range.size() - from));
    provide(here);
    from = 0;
    length -= here.size();
  }
}

void population::provide(std::span<std::byte> memory) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = begin + memory.size();
  const std::uintptr_t first_huge = round_up(begin, huge_page_bytes);
  const std::uintptr_t last_huge = round_down(end, huge_page_bytes);
  const auto advise = [this](std::uintptr_t from, std::uintptr_t to, int advice) {
    // Rounded addresses of existing memory. NOLINTNEXTLINE(performance-no-int-to-ptr)
    static_cast<void>(calls_.madvise(reinterpret_cast<void*>(from), to - from, advice));
  };
  if (first_huge < last_huge) advise(first_huge, last_huge, MADV_HUGEPAGE);
  const std::uintptr_t last = round_up(end, page_bytes());
  for (std::uintptr_t at = round_down(begin, page_bytes()); at < last;) {
    const std::uintptr_t next = std::min(last, at / call_bytes * call_bytes + call_bytes);
    advise(at, next, advice_);
    at = next;
  }
}

namespace {

// Has workers provide the pages, each worker one piece at a time, so that other jobs get their turn. A frame that is
// destroyed meanwhile waits for the workers that have begun, because the memory may be freed next.
class provision final : public weft::detail::operation_base {
 public:
  explicit provision(population& pages) noexcept : pages_(pages) {}
  provision(provision&&) = delete;
  provision& operator=(provision&&) = delete;
  ~provision() {
    for (helper& each : helpers_) each.leave();
  }

  void await_resume() const {
    if (canceled()) throw error(errc::canceled, "provide the pages of memory");
  }
  [[nodiscard]] std::string describe() const override { return "the pages of memory"; }

 private:
  // More helpers would gain nothing, because memory bandwidth limits them, and would keep workers from other jobs.
  static constexpr std::size_t most_at_a_time = 4;

  class helper final : private weft::detail::worker_job, private weft::detail::remote_work {
   public:
    // Has a worker provide a piece. If no thread can be started, the pages are left to the other helpers, or to the
    // registration.
    void begin(provision& owner) noexcept try {
      owner_ = &owner;
      ended_ = false;
      resource_workers(&owner.home()).submit(*this);
      is_busy_ = true;
      ++owner.busy_;
    } catch (const std::exception&) {
    }
    // Withdraws the job. False if it is not queued.
    bool withdraw() noexcept {
      if (!is_busy_ || !resource_workers(&owner_->home()).withdraw(*this)) return false;
      is_busy_ = false;
      --owner_->busy_;
      return true;
    }
    void leave() noexcept {
      if (withdraw() || !is_busy_) return;
      ended_.wait(false);
      owner_->home().withdraw(*this);
    }

   private:
    void run() noexcept override {
      more_ = owner_->pages_.next();
      ended_ = true;
      ended_.notify_one();
      owner_->home().submit(*this);
    }
    void run_on_executor() noexcept override {
      is_busy_ = false;
      --owner_->busy_;
      if (more_ && !owner_->canceled()) begin(*owner_);
      if (owner_->busy_ == 0) owner_->finish();
    }

    provision* owner_ = nullptr;
    bool is_busy_ = false;
    bool more_ = false;
    std::atomic<bool> ended_ = false;
  };

  void begin() override {
    const std::size_t count = std::min(most_at_a_time, pages_.pieces());
    for (std::size_t i = 0; i != count; ++i) helpers_[i].begin(*this);
    if (busy_ == 0) finish();
  }
  void cancel() noexcept override {
    for (helper& each : helpers_) each.withdraw();
    if (busy_ == 0) finish();
  }

  population& pages_;
  std::array<helper, most_at_a_time> helpers_;
  std::size_t busy_ = 0;
};

}  // namespace

task<> populate(const mr::registrar& home, std::span<const std::span<std::byte>> ranges,
                const registration_options& options) {
  if (!population::wanted(home, ranges, options)) co_return;
  population pages(ranges, options);
  provision working(pages);
  co_await working;
}

}  // namespace weft::mr::detail
