// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cache.hpp>
#include <weft/mr/cache/cache_core.hpp>
#include <weft/runtime/error.hpp>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace weft::mr {
namespace {

std::size_t number_in(const char* variable, std::size_t otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view all(text);
  std::size_t value = 0;
  const auto [end, failure] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (failure == std::errc() && end == all.data() + all.size()) return value;
  throw error(errc::invalid_argument, std::string(variable) + "=" + text + " is not a number");
}

}  // namespace

cache_options cache_options::from_environment() {
  cache_options options;
  options.max_bytes = number_in("WEFT_CACHE_MAX_SIZE", options.max_bytes);
  options.max_regions = number_in("WEFT_CACHE_MAX_COUNT", options.max_regions);
  if (const char* const text = std::getenv("WEFT_CACHE_MONITOR")) {
    const std::string_view kind(text);
    if (kind == "userfaultfd") {
      options.monitor = cache_monitor::userfaultfd;
    } else if (kind == "disabled") {
      options.max_regions = 0;
    } else {
      throw error(errc::invalid_argument,
                  "WEFT_CACHE_MONITOR=" + std::string(kind) + " is neither userfaultfd nor disabled");
    }
  }
  return options;
}

void detail::end_lease(cache_entry& held) noexcept { held.let_go(); }

std::uint64_t lease::generation() const noexcept { return entry_->generation; }

bool lease::current() const noexcept { return entry_->core().is_current(*entry_); }

mr::slice lease::slice() const noexcept { return {bytes_, entry_}; }

void lease_operation::leave() noexcept {
  if (!core_->give_up(*this)) weft::detail::remote_waiters::forget(*this);
}

bool lease_operation::await_ready() {
  core_->check(memory_, usage_);
  entry_ = core_->find(memory_, usage_);
  return entry_ != nullptr;
}

void lease_operation::begin() {
  if (!core_->wait(*this)) finish();
}

void lease_operation::cancel() noexcept {
  if (core_->give_up(*this)) finish();  // else the lease is on its way
}

void lease_operation::fail() const {
  if (failure_) throw *failure_;
  throw error(errc::canceled, "lease");
}

cache::cache(std::shared_ptr<domain> home, cache_options options) {
  if (home == nullptr) throw error(errc::invalid_argument, "a cache needs a domain");
  core_ = std::make_shared<detail::cache_core>(std::move(home), options);
}

cache::~cache() {
  if (core_->is_parents()) {
    // A child that has no memory for that ends. NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    static_cast<void>(new std::shared_ptr<detail::cache_core>(std::move(core_)));  // nothing of it can be touched
  } else {
    core_->close();
  }
}

void cache::invalidate(std::span<const std::byte> range) noexcept { core_->invalidate(range); }

void cache::clear() noexcept { core_->clear(); }

cache_statistics cache::statistics() const noexcept { return core_->statistics(); }

void add_to(metrics& all, const cache_statistics& what, std::string_view name) {
  const std::string labels = metrics::label("cache", name);
  all.gauge("weft_cache_regions", "Kept registered.", labels, what.regions);
  all.gauge("weft_cache_bytes", "Kept registered.", labels, what.bytes);
  all.gauge("weft_cache_registered_bytes", "Kept, only leased, or on their way out.", labels, what.registered_bytes);
  all.counter("weft_cache_hits_total", "Leases of what was registered.", labels, what.hits);
  all.counter("weft_cache_misses_total", "Registrations that were begun.", labels, what.misses);
  all.counter("weft_cache_shared_total", "Leases that waited for another one's registration.", labels, what.shared);
  all.counter("weft_cache_evictions_total", "Regions that gave way.", labels, what.evictions);
  all.counter("weft_cache_invalidations_total", "Regions that were invalidated.", labels, what.invalidations);
  all.counter("weft_cache_not_kept_total", "Registrations that were not kept.", labels, what.not_kept);
}

}  // namespace weft::mr
