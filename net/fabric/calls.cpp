// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/calls.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <dlfcn.h>

#include <cstdlib>

namespace weft::net::fabric {
namespace {

// FI_MR_CACHE_*: a second cache would pin memory that weft's own has let go, and leave freed memory open to the device:
// fi_mr(3). FI_UNIVERSE_SIZE: the number of peers that queues have room for. The default, 256, is more than some
// devices' queues hold, and a queue of weft has one peer. *_NO_BACKTRACE: the libraries under psm and psm2 catch the
// signals of a dying program and write files about it, even if another provider is used. Values that the user has set
// stay. libfabric takes these settings only from the environment, which no other thread should read meanwhile:
// docs/fabric.md.
void set_environment() noexcept {
  constexpr int keep = 0;
  // NOLINTBEGIN(concurrency-mt-unsafe)
  static_cast<void>(::setenv("FI_MR_CACHE_MAX_COUNT", "0", keep));
  static_cast<void>(::setenv("FI_MR_CACHE_MONITOR", "disabled", keep));
  static_cast<void>(::setenv("FI_UNIVERSE_SIZE", "4", keep));
  static_cast<void>(::setenv("IPATH_NO_BACKTRACE", "1", keep));
  static_cast<void>(::setenv("HFI_NO_BACKTRACE", "1", keep));
  // NOLINTEND(concurrency-mt-unsafe)
}

class loaded_library final : public fabric_calls {
 public:
  loaded_library() {
    set_environment();
    // Never closed: providers leave threads and handlers behind.
    void* const library = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const why = ::dlerror();
      throw error(errc::not_supported, fmt::format("load libfabric ({}); Debian has it as libfabric1",
                                                   why != nullptr ? why : "no reason given"));
    }
    find(library, "fi_getinfo", getinfo_);
    find(library, "fi_freeinfo", freeinfo_);
    find(library, "fi_dupinfo", dupinfo_);
    find(library, "fi_fabric", fabric_);
    find(library, "fi_strerror", strerror_);
    std::uint32_t (*version)() = nullptr;
    find(library, "fi_version", version);
    const std::uint32_t found = version();
    if (FI_VERSION_LT(found, interface_version)) {
      throw error(errc::not_supported, fmt::format("libfabric {}.{} is here, and weft needs 1.17 or newer",
                                                   FI_MAJOR(found), FI_MINOR(found)));
    }
  }

  int getinfo(const fi_info* hints, fi_info** found) noexcept override {
    return getinfo_(interface_version, nullptr, nullptr, 0, hints, found);
  }
  void freeinfo(fi_info* info) noexcept override { freeinfo_(info); }
  fi_info* dupinfo(const fi_info* info) noexcept override { return dupinfo_(info); }
  const char* strerror(int number) noexcept override { return strerror_(number); }
  int fabric(fi_fabric_attr* wanted, fid_fabric** made) noexcept override { return fabric_(wanted, made, nullptr); }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function*& place) {
    void* const found = ::dlsym(library, name);
    if (found == nullptr) throw error(errc::not_supported, fmt::format("find {} in libfabric.so.1", name));
    place = reinterpret_cast<Function*>(found);
  }

  decltype(::fi_getinfo)* getinfo_ = nullptr;
  decltype(::fi_freeinfo)* freeinfo_ = nullptr;
  decltype(::fi_dupinfo)* dupinfo_ = nullptr;
  decltype(::fi_fabric)* fabric_ = nullptr;
  decltype(::fi_strerror)* strerror_ = nullptr;
};

}  // namespace

fabric_calls& fabric_calls::library() {
  static loaded_library instance;
  return instance;
}

int fabric_calls::domain(fid_fabric* fabric, fi_info* info, fid_domain** made) noexcept {
  return ::fi_domain(fabric, info, made, nullptr);
}
bool fabric_calls::has_atomics(fid_domain* domain) noexcept {
  fi_atomic_attr found{};
  return ::fi_query_atomic(domain, FI_UINT64, FI_SUM, &found, FI_FETCH_ATOMIC) == 0 &&
         ::fi_query_atomic(domain, FI_UINT64, FI_CSWAP, &found, FI_COMPARE_ATOMIC) == 0;
}
int fabric_calls::cq_open(fid_domain* domain, fi_cq_attr* wanted, fid_cq** made) noexcept {
  return ::fi_cq_open(domain, wanted, made, nullptr);
}
int fabric_calls::av_open(fid_domain* domain, fi_av_attr* wanted, fid_av** made) noexcept {
  return ::fi_av_open(domain, wanted, made, nullptr);
}
int fabric_calls::endpoint(fid_domain* domain, fi_info* info, fid_ep** made) noexcept {
  return ::fi_endpoint(domain, info, made, nullptr);
}
int fabric_calls::ep_bind(fid_ep* endpoint, fid* to, std::uint64_t flags) noexcept {
  return ::fi_ep_bind(endpoint, to, flags);
}
int fabric_calls::enable(fid_ep* endpoint) noexcept { return ::fi_enable(endpoint); }
int fabric_calls::getname(fid* endpoint, void* address, std::size_t* length) noexcept {
  return ::fi_getname(endpoint, address, length);
}
int fabric_calls::av_insert(fid_av* vector, const void* address, fi_addr_t* place) noexcept {
  const int count = ::fi_av_insert(vector, address, 1, place, 0, nullptr);
  if (count < 0) return count;
  return count == 1 ? 0 : -FI_EINVAL;
}
int fabric_calls::close(fid* object) noexcept { return ::fi_close(object); }

int fabric_calls::mr_regattr(fid_domain* domain, const fi_mr_attr* wanted, std::uint64_t flags,
                             fid_mr** made) noexcept {
  return ::fi_mr_regattr(domain, wanted, flags, made);
}
int fabric_calls::mr_bind(fid_mr* region, fid* to, std::uint64_t flags) noexcept {
  return ::fi_mr_bind(region, to, flags);
}
int fabric_calls::mr_enable(fid_mr* region) noexcept { return ::fi_mr_enable(region); }

int fabric_calls::get_wait_fd(fid_cq* queue, int* fd) noexcept { return ::fi_control(&queue->fid, FI_GETWAIT, fd); }
int fabric_calls::trywait(fid_fabric* fabric, fid_cq* queue) noexcept {
  fid* waited_for = &queue->fid;
  return ::fi_trywait(fabric, &waited_for, 1);
}
ssize_t fabric_calls::cq_read(fid_cq* queue, fi_cq_msg_entry* found, std::size_t most) noexcept {
  return ::fi_cq_read(queue, found, most);
}
ssize_t fabric_calls::cq_readerr(fid_cq* queue, fi_cq_err_entry* found) noexcept {
  return ::fi_cq_readerr(queue, found, 0);
}

ssize_t fabric_calls::recvmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept {
  return ::fi_recvmsg(endpoint, what, flags);
}
ssize_t fabric_calls::sendmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept {
  return ::fi_sendmsg(endpoint, what, flags);
}
ssize_t fabric_calls::writemsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept {
  return ::fi_writemsg(endpoint, what, flags);
}
ssize_t fabric_calls::readmsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept {
  return ::fi_readmsg(endpoint, what, flags);
}
ssize_t fabric_calls::fetch_atomicmsg(fid_ep* endpoint, const fi_msg_atomic* what, fi_ioc* result, void** result_desc,
                                      std::uint64_t flags) noexcept {
  return ::fi_fetch_atomicmsg(endpoint, what, result, result_desc, 1, flags);
}
ssize_t fabric_calls::compare_atomicmsg(fid_ep* endpoint, const fi_msg_atomic* what, const fi_ioc* compare,
                                        void** compare_desc, fi_ioc* result, void** result_desc,
                                        std::uint64_t flags) noexcept {
  return ::fi_compare_atomicmsg(endpoint, what, compare, compare_desc, 1, result, result_desc, 1, flags);
}

}  // namespace weft::net::fabric
