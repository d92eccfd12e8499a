// SPDX-License-Identifier: Apache-2.0
// The tests, or, with two arguments that name no option, a peer of one of them; with four, a confined one.
#include "shm_link/confined.hpp"

int main(int argc, char** argv) {
  if (argc == 3 && argv[1][0] != '-') return weft::test::run_role(argv[1], argv[2]);
  if (argc == 5 && argv[1][0] != '-') return weft::test::run_confined({argv[1], argv[2], argv[3], argv[4]});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
