// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/endpoint.hpp>
#include <weft/net/link/checked.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

namespace weft::net::fabric {
namespace {

void check(const device& home, int result, const char* step) {
  if (result < 0) throw_failure(home.calls(), result, step);
}

}  // namespace

endpoint::endpoint(std::shared_ptr<const device> home, const void* address, std::size_t address_length,
                   std::uint16_t requests, std::uint16_t receives)
    : home_(std::move(home)), requests_(requests) {
  const std::size_t bytes =
      requests * std::size_t{source_bytes + own_bytes} + receives * std::size_t{message_trailer::bytes};
  staging_ = std::make_unique<std::byte[]>(bytes);
  if (home_->needs(FI_MR_LOCAL)) register_staging(bytes);
  const auto inside = home_->enter();
  try {
    // A request takes two entries at most. A few more are spare, because some providers overrun a queue: fi_efa(7).
    open(address, address_length, std::size_t{requests} * 2 + receives + 16);
  } catch (...) {
    close();
    throw;
  }
}

void endpoint::open(const void* address, std::size_t address_length, std::size_t entries) {
  fabric_calls& library = calls();
  const fid_closer closer{&library};
  open_queue(entries);
  fi_av_attr vector_options{};
  vector_options.type = FI_AV_TABLE;
  vector_options.count = 1;
  fid_av* vector = nullptr;
  check(*home_, library.av_open(home_->domain(), &vector_options, &vector), "open an address vector");
  vector_ = fid_ptr<fid_av>(vector, closer);
  const device::info_ptr info = home_->info_at(address, address_length);
  fid_ep* made = nullptr;
  check(*home_, library.endpoint(home_->domain(), info.get(), &made), "open an endpoint");
  endpoint_ = fid_ptr<fid_ep>(made, closer);
  check(*home_, library.ep_bind(made, &vector_->fid, 0), "bind the address vector to the endpoint");
  check(*home_, library.ep_bind(made, &queue_->fid, FI_TRANSMIT | FI_RECV), "bind the queue to the endpoint");
  check(*home_, library.enable(made), "enable the endpoint");
  length_ = address_.size();
  check(*home_, library.getname(&made->fid, address_.data(), &length_), "ask for the endpoint's address");
  if (length_ > address_.size()) throw error(errc::not_supported, "the addresses of this provider are too long");
}

// Reads the queue first, unless the device is frozen: libfabric 1.17's net provider may have a connection to accept,
// and would accept it after the endpoint is closed.
endpoint::~endpoint() {
  const auto inside = home_->enter();
  if (endpoint_ != nullptr && queue_ != nullptr && inside.may_move_bytes()) {
    fi_cq_msg_entry last{};
    for (int looks = 0; looks != 4; ++looks) static_cast<void>(calls().cq_read(queue_.get(), &last, 1));
  }
  close();
}

void endpoint::close() noexcept {
  endpoint_.reset();
  queue_.reset();
  vector_.reset();
}

// Opens a queue with a descriptor or, if the provider has none, without. Some providers, such as rxd of libfabric 1.17,
// open a queue with FI_WAIT_FD, and then have no descriptor for it.
void endpoint::open_queue(std::size_t entries) {
  fabric_calls& library = calls();
  fi_cq_attr wanted{};
  wanted.size = entries;
  wanted.format = FI_CQ_FORMAT_MSG;
  wanted.wait_obj = FI_WAIT_FD;
  fid_cq* queue = nullptr;
  if (library.cq_open(home_->domain(), &wanted, &queue) == 0) {
    queue_ = fid_ptr<fid_cq>(queue, {&library});
    if (library.get_wait_fd(queue, &wait_fd_) == 0) return;
    queue_.reset();
  }
  can_wait_ = false;
  wanted.wait_obj = FI_WAIT_NONE;
  check(*home_, library.cq_open(home_->domain(), &wanted, &queue), "open a completion queue");
  queue_ = fid_ptr<fid_cq>(queue, {&library});
  system_calls& kernel = system_calls::kernel();
  wait_fd_ = checked(kernel.eventfd(0, EFD_CLOEXEC), "eventfd");
  nothing_ = descriptor(wait_fd_, kernel);
}

void endpoint::register_staging(std::size_t bytes) {
  constexpr std::uint64_t rights = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
  staging_region_ = register_region(*home_, {staging_.get(), bytes}, rights, nullptr, "register an endpoint's memory");
  staging_desc_ = ::fi_mr_desc(staging_region_.get());
}

void endpoint::insert(std::span<const std::byte> address) {
  std::array<std::byte, max_address_bytes> whole{};  // the provider may read as many bytes as its own addresses have
  std::ranges::copy(address, whole.begin());
  const auto inside = home_->enter();
  check(*home_, calls().av_insert(vector_.get(), whole.data(), &peer_), "make the peer's endpoint known");
}

}  // namespace weft::net::fabric
