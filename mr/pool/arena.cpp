// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/arena.hpp>
#include <weft/mr/pool/poison.hpp>

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace weft::mr {

arena::arena(std::shared_ptr<mr::domain> home, std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls)
    : domain_(std::move(home)), memory_(domain_->provide(bytes, huge_pages, node, calls)) {
  constexpr usage own_uses = usage::send | usage::recv | usage::read_dst | usage::write_src;
  registration_options options;
  options.usage = own_uses;
  options.usage |= domain_->capabilities().usages & usage::bind_window;  // buffers can be exposed
  options.huge_pages = memory_.pages() == page_kind::huge || memory_.pages() == page_kind::giant;
  record_.home = domain_.get();
  record_.bytes = {data(), size()};
  record_.usage = own_uses;
  record_.file = memory_.file();
  domain_->register_now(record_, options);
  detail::forbid({data(), size()});
}

arena::~arena() {
  detail::permit({data(), size()});  // the next mapping may lie at the same place
  domain_->deregister_now(record_);
}

std::optional<std::size_t> locked_memory_limit() noexcept {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  const bool known = ::syscall(SYS_capget, &header, sets.data()) == 0;
  if (known && (sets[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0) return std::nullopt;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::size_t>(limit.rlim_cur);
}

}  // namespace weft::mr
