// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "fighter.hpp"
#include "opponent.hpp"

namespace weft::stress {
namespace {

class near_opponent final : public opponent {
 public:
  explicit near_opponent(const battleground& where) : where_(where) {}

  void start(const duel& what, const std::string& address, bool may_fail) override {
    if (!process_.has_ended()) throw error(errc::invalid_argument, "there is a server already");
    count_->listening = count_->over = false;
    count_->received = count_->answered = count_->at_limit = 0;
    count_->excused_bytes = 0;
    count_->address = {};
    std::copy_n(address.begin(), std::min(address.size(), count_->address.size() - 1), count_->address.begin());
    process_.start([&] { return be_server(what, where_, may_fail, *count_); });
  }
  std::string kill() override { return process_.kill(count_->excused_bytes); }
  void freeze() override { process_.signal(SIGSTOP); }
  void thaw() override { process_.signal(SIGCONT); }
  void finish() override { count_->over = true; }
  news look() override {
    news found{.ended = process_.has_ended()};
    if (found.ended) found.words = process_.words();
    if (count_->listening) found.address = count_->address.data();
    found.resident = process_.resident();
    found.received = count_->received;
    found.answered = count_->answered;
    found.at_limit = count_->at_limit;
    return found;
  }
  std::string dump() override { return process_.dump(); }

 private:
  const battleground& where_;
  const shared_memory<server_score> count_;
  fighter process_{"server", count_->words};
};

}  // namespace

std::unique_ptr<opponent> make_near_opponent(const battleground& where) {
  return std::make_unique<near_opponent>(where);
}

}  // namespace weft::stress
