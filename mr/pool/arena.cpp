// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/arena.hpp>
#include <weft/mr/pool/poison.hpp>

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
  detail::permit({data(), size()});  // the next mapping may have the same address
  domain_->deregister_now(record_);
}

}  // namespace weft::mr
