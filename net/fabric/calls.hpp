// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace weft::net::fabric {

/// The version of the interface that weft is written for; newer libraries support it.
inline constexpr std::uint32_t interface_version = FI_VERSION(1, 17);

/// The calls into libfabric that can fail. Tests override them to inject failures, or to put a provider of their own in
/// libfabric's place.
///
/// Each function makes the call of that name, prefixed with fi_, in section 3 of the manual. Those that return an int
/// or ssize_t return 0 or a count, or -errno (fi_errno(3)); those that create something yield it through their last
/// parameter. Called from any thread, as FI_THREAD_SAFE allows.
class fabric_calls {
 public:
  virtual ~fabric_calls() = default;

  // Discovery.
  virtual int getinfo(const fi_info* hints, fi_info** found) noexcept = 0;
  virtual void freeinfo(fi_info* info) noexcept = 0;
  /// Copies `info`, or makes an empty fi_info if `info` is null. Returns null if there is no memory.
  virtual fi_info* dupinfo(const fi_info* info) noexcept = 0;
  /// The text of an error, which stays valid.
  virtual const char* strerror(int number) noexcept = 0;

  // Objects. Each ends with close().
  virtual int fabric(fi_fabric_attr* wanted, fid_fabric** made) noexcept = 0;
  virtual int domain(fid_fabric* fabric, fi_info* info, fid_domain** made) noexcept;
  /// Whether a domain has the two atomic operations of weft, of 8 bytes: fi_query_atomic(3).
  virtual bool has_atomics(fid_domain* domain) noexcept;
  virtual int cq_open(fid_domain* domain, fi_cq_attr* wanted, fid_cq** made) noexcept;
  virtual int av_open(fid_domain* domain, fi_av_attr* wanted, fid_av** made) noexcept;
  virtual int endpoint(fid_domain* domain, fi_info* info, fid_ep** made) noexcept;
  virtual int ep_bind(fid_ep* endpoint, fid* to, std::uint64_t flags) noexcept;
  virtual int enable(fid_ep* endpoint) noexcept;
  virtual int getname(fid* endpoint, void* address, std::size_t* length) noexcept;
  virtual int av_insert(fid_av* vector, const void* address, fi_addr_t* place) noexcept;
  virtual int close(fid* object) noexcept;

  // Memory.
  virtual int mr_regattr(fid_domain* domain, const fi_mr_attr* wanted, std::uint64_t flags, fid_mr** made) noexcept;
  virtual int mr_bind(fid_mr* region, fid* to, std::uint64_t flags) noexcept;
  virtual int mr_enable(fid_mr* region) noexcept;

  // Completions.
  /// The descriptor of a queue with FI_WAIT_FD.
  virtual int get_wait_fd(fid_cq* queue, int* fd) noexcept;
  virtual int trywait(fid_fabric* fabric, fid_cq* queue) noexcept;
  virtual ssize_t cq_read(fid_cq* queue, fi_cq_msg_entry* found, std::size_t most) noexcept;
  virtual ssize_t cq_readerr(fid_cq* queue, fi_cq_err_entry* found) noexcept;

  // Requests.
  virtual ssize_t recvmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept;
  virtual ssize_t sendmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept;
  virtual ssize_t writemsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept;
  virtual ssize_t readmsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept;
  virtual ssize_t fetch_atomicmsg(fid_ep* endpoint, const fi_msg_atomic* what, fi_ioc* result, void** result_desc,
                                  std::uint64_t flags) noexcept;
  virtual ssize_t compare_atomicmsg(fid_ep* endpoint, const fi_msg_atomic* what, const fi_ioc* compare,
                                    void** compare_desc, fi_ioc* result, void** result_desc,
                                    std::uint64_t flags) noexcept;

  /// libfabric itself, loaded with dlopen(3) by the first call. Throws weft::error: errc::not_supported where it is
  /// missing or too old.
  [[nodiscard]] static fabric_calls& library();
};

}  // namespace weft::net::fabric
