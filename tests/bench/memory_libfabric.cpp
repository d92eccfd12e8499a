// SPDX-License-Identifier: Apache-2.0
// memory_libfabric DEVICE: what a registration costs that libfabric's cache has, over its verbs provider, and one that
// it has not, of 1,000 regions. In nanoseconds, as JSON. See fi_mr(3), "MEMORY REGISTRATION CACHE".
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <cstdio>

#include "kit/standard.hpp"

namespace {

using wall = std::chrono::steady_clock;

constexpr std::size_t regions = 1000;
constexpr std::size_t region_bytes = 4096;
constexpr std::size_t few = 2000;
constexpr std::size_t many = 12000;

double nanoseconds_since(wall::time_point from) {
  return std::chrono::duration<double, std::nano>(wall::now() - from).count();
}

/// One after the other, but not as they lie in memory.
std::span<std::byte> range(std::vector<std::byte>& memory, std::size_t i) {
  return std::span(memory).subspan(i * 617 % regions * region_bytes, region_bytes);
}

struct close_it {
  template <class Object>
  void operator()(Object* item) const noexcept {
    static_cast<void>(::fi_close(&item->fid));
  }
};
template <class Object>
using owned = std::unique_ptr<Object, close_it>;

void check(int status, const std::string& what) {
  if (status != 0) throw std::runtime_error(what + ": " + ::fi_strerror(-status));
}

class verbs_domain {
 public:
  explicit verbs_domain(const std::string& device) {
    const std::unique_ptr<fi_info, void (*)(fi_info*)> wanted(::fi_allocinfo(), ::fi_freeinfo);
    wanted->ep_attr->type = FI_EP_MSG;
    wanted->caps = FI_MSG | FI_RMA;
    wanted->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    // The library frees it.
    wanted->fabric_attr->prov_name = ::strdup("verbs");
    wanted->domain_attr->name = ::strdup(device.c_str());
    fi_info* found = nullptr;
    check(::fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, wanted.get(), &found),
          "fi_getinfo for verbs on " + device);
    info_.reset(found);
    fid_fabric* fabric = nullptr;
    check(::fi_fabric(info_->fabric_attr, &fabric, nullptr), "fi_fabric");
    fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    check(::fi_domain(fabric_.get(), info_.get(), &domain, nullptr), "fi_domain");
    domain_.reset(domain);
  }

  void lease(std::span<std::byte> memory) {
    fid_mr* made = nullptr;
    check(::fi_mr_reg(domain_.get(), memory.data(), memory.size(), FI_SEND | FI_WRITE, 0, 0, 0, &made, nullptr),
          "fi_mr_reg");
    const owned<fid_mr> held(made);
  }

 private:
  std::unique_ptr<fi_info, void (*)(fi_info*)> info_{nullptr, ::fi_freeinfo};
  owned<fid_fabric> fabric_;
  owned<fid_domain> domain_;
};

struct costs {
  double miss = 0;
  double hit = 0;
};

costs of_libfabric(const std::string& device) {
  verbs_domain domain(device);
  std::vector<std::byte> memory(regions * region_bytes, std::byte{1});
  const auto touch = [&](std::size_t count) {
    const auto start = wall::now();
    for (std::size_t i = 0; i < count; ++i) domain.lease(range(memory, i));
    return nanoseconds_since(start);
  };
  costs seen{.miss = touch(regions) / regions};
  const double less = touch(few);
  seen.hit = (touch(many) - less) / (many - few);
  return seen;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fputs("usage: memory_libfabric DEVICE\n", stderr);
    return 2;
  }
  const costs seen = of_libfabric(argv[1]);
  std::printf("{\"hit\": %.1f, \"miss\": %.1f}\n", seen.hit, seen.miss);
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "memory_libfabric: %s\n", why.what());
  return 1;
}
