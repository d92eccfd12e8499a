// SPDX-License-Identifier: Apache-2.0
// The Soft-RoCE device of the virtual machine (tests/vm).
#pragma once

#include <weft/mr/usage.hpp>

#include <gtest/gtest.h>

#include <filesystem>

namespace weft::net::verbs {

inline constexpr const char* device_name = "rxe0";
inline constexpr const char* any_address = "10.77.0.1:0";
inline constexpr mr::usage open_wide = mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst;

class rxe_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(std::filesystem::path("/sys/class/infiniband") / device_name)) {
      GTEST_SKIP() << "this machine has no RDMA device " << device_name;
    }
  }
};

}  // namespace weft::net::verbs
