// SPDX-License-Identifier: Apache-2.0
#include "demanding_library.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace weft::test {
namespace {

bool is_mapped(std::uintptr_t begin, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = begin / page * page;
  const std::size_t length = begin + bytes - first;
  std::vector<unsigned char> pages(length / page + 1);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return ::mincore(reinterpret_cast<void*>(first), length, pages.data()) == 0;
}

// Calls it with the modes of the provider underneath.
template <class Call>
int with_modes(fi_info& info, int modes, Call call) noexcept {
  const int asked = std::exchange(info.domain_attr->mr_mode, modes);
  const int result = call();
  info.domain_attr->mr_mode = asked;
  return result;
}

}  // namespace

int demanding_library::getinfo(const fi_info* hints, fi_info** found) noexcept {
  const int result = shim_library::getinfo(hints, found);
  if (result < 0) return result;
  modes_underneath_ = (*found)->domain_attr->mr_mode;
  (*found)->domain_attr->mr_mode |= modes_;
  return 0;
}

int demanding_library::domain(fid_fabric* fabric, fi_info* info, fid_domain** made) noexcept {
  return with_modes(*info, modes_underneath_, [&] { return shim_library::domain(fabric, info, made); });
}

int demanding_library::endpoint(fid_domain* domain, fi_info* info, fid_ep** made) noexcept {
  return with_modes(*info, modes_underneath_, [&] { return shim_library::endpoint(domain, info, made); });
}

int demanding_library::mr_regattr(fid_domain* domain, const fi_mr_attr* wanted, std::uint64_t flags,
                                  fid_mr** made) noexcept {
  const std::lock_guard lock(mutex_);
  fi_mr_attr changed = *wanted;
  if (wants(FI_MR_PROV_KEY)) {
    if (wanted->requested_key != 0) broke("a key was asked for that the provider chooses");
    changed.requested_key = lowest_free_key();
  }
  region item{.begin = reinterpret_cast<std::uintptr_t>(wanted->mr_iov->iov_base),
              .bytes = wanted->mr_iov->iov_len,
              .rights = wanted->access};
  if (wants(FI_MR_ALLOCATED) && !is_mapped(item.begin, item.bytes)) broke("memory was registered that is not there");
  const int result = shim_library::mr_regattr(domain, &changed, flags, made);
  if (result < 0) return result;
  item.key = (*made)->key;
  if (wants(FI_MR_LOCAL)) (*made)->mem_desc = *made;
  regions_[*made] = item;
  return 0;
}

int demanding_library::mr_bind(fid_mr* made, fid* to, std::uint64_t) noexcept {
  if (fails("mr_bind")) return -FI_ENOMEM;
  const std::lock_guard lock(mutex_);
  if (!wants(FI_MR_ENDPOINT)) broke("a region was bound for nothing");
  if (regions_[made].is_enabled) broke("a region was bound after it had been enabled");
  regions_[made].bound = to;
  return 0;
}

int demanding_library::mr_enable(fid_mr* made) noexcept {
  if (fails("mr_enable")) return -FI_ENOMEM;
  const std::lock_guard lock(mutex_);
  if (!wants(FI_MR_ENDPOINT | FI_MR_RMA_EVENT)) broke("a region was enabled for nothing");
  regions_[made].is_enabled = true;
  return 0;
}

int demanding_library::close(fid* object) noexcept {
  const std::lock_guard lock(mutex_);
  if (object->fclass == FI_CLASS_MR) regions_.erase(reinterpret_cast<fid_mr*>(object));
  for (const auto& [made, item] : regions_) {
    if (item.bound == object) broke("an endpoint was closed before a region that is bound to it");
  }
  return shim_library::close(object);
}

std::uint64_t demanding_library::lowest_free_key() noexcept {
  std::uint64_t key = std::uint64_t{1} << 40;
  while (find(key) != nullptr) ++key;
  return key;
}

demanding_library::region* demanding_library::find(std::uint64_t key) noexcept {
  for (auto& [made, item] : regions_) {
    if (item.key == key) return &item;
  }
  return nullptr;
}

void demanding_library::check_local(std::span<const iovec> ranges, void* const* descs, std::uint64_t right) {
  if (!wants(FI_MR_LOCAL)) return;
  for (std::size_t i = 0; i != ranges.size(); ++i) {
    const auto found = descs != nullptr ? regions_.find(static_cast<fid_mr*>(descs[i])) : regions_.end();
    if (found == regions_.end()) return broke("local memory came without a descriptor");
    const region& item = found->second;
    const auto begin = reinterpret_cast<std::uintptr_t>(ranges[i].iov_base);
    const bool is_inside = begin >= item.begin && begin + ranges[i].iov_len <= item.begin + item.bytes;
    if (!is_inside) broke("local memory came with the descriptor of other memory");
    if ((item.rights & right) == 0) broke("local memory came with a descriptor that has no right for that");
  }
}

void demanding_library::check_there(fid_ep* from, fi_addr_t to, const region& target) {
  if (wants(FI_MR_ENDPOINT | FI_MR_RMA_EVENT) && !target.is_enabled) broke("a key was used that was not enabled");
  if (!wants(FI_MR_ENDPOINT)) return;
  fid_ep* const peer = map_.find(from, to);
  if (peer != nullptr && target.bound != &peer->fid) broke("a key was used that is bound to no endpoint, or another");
}

void demanding_library::translate(fid_ep* from, fi_addr_t to, std::uint64_t& address, std::uint64_t key) {
  const region* const target = find(key);
  if (target == nullptr) return;  // it has been closed, and is refused
  check_there(from, to, *target);
  if (wants(FI_MR_VIRT_ADDR)) address -= target->begin;
}

ssize_t demanding_library::recvmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  check_local({what->msg_iov, what->iov_count}, what->desc, FI_RECV);
  return shim_library::recvmsg(endpoint, what, flags);
}

ssize_t demanding_library::sendmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  check_local({what->msg_iov, what->iov_count}, what->desc, FI_SEND);
  return shim_library::sendmsg(endpoint, what, flags);
}

ssize_t demanding_library::writemsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  check_local({what->msg_iov, what->iov_count}, what->desc, FI_WRITE);
  fi_rma_iov there = *what->rma_iov;
  fi_msg_rma changed = *what;
  changed.rma_iov = &there;
  translate(endpoint, what->addr, there.addr, there.key);
  return shim_library::writemsg(endpoint, &changed, flags);
}

ssize_t demanding_library::readmsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  check_local({what->msg_iov, what->iov_count}, what->desc, FI_READ);
  fi_rma_iov there = *what->rma_iov;
  fi_msg_rma changed = *what;
  changed.rma_iov = &there;
  translate(endpoint, what->addr, there.addr, there.key);
  return shim_library::readmsg(endpoint, &changed, flags);
}

ssize_t demanding_library::fetch_atomicmsg(fid_ep* endpoint, const fi_msg_atomic* what, fi_ioc* result,
                                           void** result_desc, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  const iovec operand{.iov_base = what->msg_iov->addr, .iov_len = sizeof(std::uint64_t)};
  const iovec answer{.iov_base = result->addr, .iov_len = sizeof(std::uint64_t)};
  check_local({&operand, 1}, what->desc, FI_WRITE);
  check_local({&answer, 1}, result_desc, FI_READ);
  fi_rma_ioc there = *what->rma_iov;
  fi_msg_atomic changed = *what;
  changed.rma_iov = &there;
  translate(endpoint, what->addr, there.addr, there.key);
  return shim_library::fetch_atomicmsg(endpoint, &changed, result, result_desc, flags);
}

std::string names_of_modes(int modes) {
  constexpr std::array<std::pair<int, const char*>, 7> all{{{FI_MR_LOCAL, "local"},
                                                            {FI_MR_VIRT_ADDR, "virt_addr"},
                                                            {FI_MR_ALLOCATED, "allocated"},
                                                            {FI_MR_PROV_KEY, "prov_key"},
                                                            {FI_MR_MMU_NOTIFY, "mmu_notify"},
                                                            {FI_MR_RMA_EVENT, "rma_event"},
                                                            {FI_MR_ENDPOINT, "endpoint"}}};
  std::string words;
  for (const auto& [mode, name] : all) {
    if ((modes & mode) != 0) words += (words.empty() ? "" : "_and_") + std::string(name);
  }
  return words.empty() ? "none" : words;
}

}  // namespace weft::test
