// SPDX-License-Identifier: Apache-2.0
// The tests, or, with two arguments that name no option, a peer of one of them.
#include "shm_link/process.hpp"

int main(int argc, char** argv) {
  if (argc == 3 && argv[1][0] != '-') return weft::test::run_role(argv[1], argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
