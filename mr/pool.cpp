// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/mr/pool/pool_core.hpp>

#include <utility>

namespace weft::mr {

pool::pool(std::shared_ptr<domain> home, pool_options options)
    : core_(new detail::pool_core(std::move(home), options)), number_(core_->number()) {}

pool::~pool() {
  core_->report_leaks();
  core_->close();
}

detail::block* pool::take(std::size_t bytes, budget which, const std::source_location& where) {
  core_->limits().check(bytes, which);
  return core_->take(bytes, which, where);
}

task<std::vector<buffer>> pool::allocate_all(std::size_t count, std::size_t bytes, budget which,
                                             std::source_location where) {
  core_->limits().check(bytes, which);
  const std::size_t most = max_buffers(bytes, which);
  if (count > most) throw core_->limits().impossible(count, bytes, which, most);
  std::vector<buffer> all;
  if (count == 0) co_return all;
  all.reserve(count);
  detail::allocate_waiter gathering(*core_, count, bytes, which, where);
  detail::block* item = co_await gathering;
  while (item != nullptr) {
    detail::block& taken = *std::exchange(item, std::exchange(item->next, nullptr));
    all.push_back(buffer(taken, bytes));
  }
  co_return all;
}

std::size_t pool::max_buffer_bytes(budget which) const noexcept { return core_->limits().of(which); }

int pool::numa_node() const noexcept { return core_->node(); }

std::size_t pool::max_buffers(std::size_t bytes, budget which) const noexcept {
  return core_->most_blocks(bytes, which);
}

pool_statistics pool::statistics() const { return core_->statistics(); }

}  // namespace weft::mr
