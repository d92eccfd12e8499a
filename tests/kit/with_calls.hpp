// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::test {

/// The system calls of a fixture, as a base before the fixture, which they are to outlive.
template <class Calls>
struct calls_of_a_fixture {
  Calls calls;
};

/// A fixture on whose executor the system calls are these, `calls`.
template <class Calls, class Fixture>
class with_calls : protected calls_of_a_fixture<Calls>, public Fixture {
 protected:
  with_calls() : Fixture(calls_of_a_fixture<Calls>::calls) {}
  using calls_of_a_fixture<Calls>::calls;
};

}  // namespace weft::test
