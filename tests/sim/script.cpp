// SPDX-License-Identifier: Apache-2.0
#include "script.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace weft::sim {

NLOHMANN_JSON_SERIALIZE_ENUM(action, {{action::send, "send"},
                                      {action::write, "write"},
                                      {action::write_and_tell, "write_and_tell"},
                                      {action::read, "read"},
                                      {action::flush, "flush"},
                                      {action::add, "add"},
                                      {action::add_all, "add_all"},
                                      {action::swap, "swap"},
                                      {action::batch, "batch"},
                                      {action::list, "list"},
                                      {action::exposure, "exposure"},
                                      {action::window, "window"},
                                      {action::own_region, "own_region"},
                                      {action::pause, "pause"}})
NLOHMANN_JSON_SERIALIZE_ENUM(lending, {{lending::moved, "moved"},
                                       {lending::pinned, "pinned"},
                                       {lending::borrowed, "borrowed"},
                                       {lending::gathered, "gathered"}})
NLOHMANN_JSON_SERIALIZE_ENUM(ending, {{ending::client_closes, "client_closes"},
                                      {ending::server_closes, "server_closes"},
                                      {ending::both_close, "both_close"},
                                      {ending::client_drops, "client_drops"},
                                      {ending::server_drops, "server_drops"},
                                      {ending::client_aborts, "client_aborts"},
                                      {ending::server_aborts, "server_aborts"},
                                      {ending::beyond_bounds, "beyond_bounds"},
                                      {ending::without_right, "without_right"},
                                      {ending::foreign_key, "foreign_key"},
                                      {ending::revoked_key, "revoked_key"},
                                      {ending::server_forgets, "server_forgets"}})
NLOHMANN_JSON_SERIALIZE_ENUM(overstepping, {{overstepping::none, "none"},
                                            {overstepping::of_window, "of_window"},
                                            {overstepping::of_region, "of_region"},
                                            {overstepping::of_rights, "of_rights"}})
NLOHMANN_JSON_SERIALIZE_ENUM(fault_kind, {{fault_kind::reset, "reset"},
                                          {fault_kind::cut, "cut"},
                                          {fault_kind::stall, "stall"},
                                          {fault_kind::client_send_fails, "client_send_fails"},
                                          {fault_kind::server_send_fails, "server_send_fails"},
                                          {fault_kind::damage, "damage"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(step, what, memory, bytes, offset, immediate, count, stop_after_us)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(lane, of_client, home, destroyed_after_us, steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(side_options, receive_size, receive_depth, send_depth, reads, share_receives,
                                   receive_pause_us, receive_stop_us, keep, direct, direct_windows, resume_within_ms)
NLOHMANN_JSON_SERIALIZE_ENUM(rail_kind, {{rail_kind::tcp, "tcp"}, {rail_kind::rdma, "rdma"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(fault, what, after_us, rail, lasts_us)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(meeting_plan, start_us, client_home, server_home, pass_on, client, server, eager,
                                   area_bytes, lanes, faults, how, end_after_us, settles, oversteps, overstepped_bytes,
                                   overstepped_after_us, dies_in_loan)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(conditions, longest_delay_ns, longest_job_ns, longest_turn_ns, socket_bytes,
                                   packet_bytes, short_share, idle_share, spurious_share, shuffle)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(script, seed, net, executors, listener_home, shuffle_tasks, one_device, checksum,
                                   place_unchecked, allow_shared_windows, arena_bytes, tight_pool, shared_depth,
                                   failing_mappings, failing_accepts, declined_share, unsent_share, removal_us,
                                   failing_call, rails, meetings)

namespace {

template <class T>
T narrow(std::uint64_t value) noexcept {
  return static_cast<T>(value);
}

conditions make_conditions(random& dice) {
  conditions net{.longest_delay_ns = dice.one_in(8) ? 0 : 100U << dice.below(18),
                 .longest_job_ns = 1000U << dice.below(14),
                 .longest_turn_ns = 100U << dice.below(10),
                 .socket_bytes = dice.one_in(8) ? dice.between(1, 200) : 1024U << dice.below(9),
                 .packet_bytes = dice.one_in(8) ? dice.between(1, 64) : 512U << dice.below(10),
                 .short_share = dice.one_in(2) ? 0 : dice.below(700),
                 .idle_share = dice.one_in(2) ? 0 : dice.below(700),
                 .spurious_share = dice.one_in(2) ? 0 : dice.below(150),
                 .shuffle = !dice.one_in(3)};
  return net;
}

side_options make_side(random& dice, const script& all) {
  side_options side{.receive_size = narrow<std::uint32_t>(dice.one_in(4) ? 16'384 : 64 + dice.skewed(4096)),
                    .receive_depth = narrow<std::uint16_t>(1 + dice.skewed(31)),
                    .send_depth = narrow<std::uint16_t>(1 + dice.skewed(63)),
                    .reads = narrow<std::uint16_t>(1 + dice.skewed(15)),
                    .share_receives = dice.one_in(all.shared_depth < 4 ? 2 : 6)};
  const bool scarce = side.share_receives && all.shared_depth < 4;
  side.receive_pause_us = dice.one_in(scarce ? 1 : 3) ? narrow<std::uint32_t>(dice.skewed(scarce ? 20'000 : 500)) : 0;
  side.receive_stop_us = dice.one_in(4) ? narrow<std::uint32_t>(1 + dice.skewed(200)) : 0;
  side.keep = dice.one_in(4) ? narrow<std::uint32_t>(dice.below(side.receive_depth)) : 0;
  return side;
}

action make_action(random& dice, const script& all) {
  const std::uint64_t choice = dice.below(100);
  if (choice < 35) return action::send;
  if (choice < 50) return action::write;
  if (choice < 57) return action::write_and_tell;
  if (choice < 67) return action::read;
  if (choice < 70) return action::flush;
  if (choice < 75) return action::add;
  if (choice < 80) return action::add_all;
  if (choice < 84) return action::swap;
  if (choice < 91 || all.tight_pool) return all.tight_pool ? action::pause : action::batch;
  if (choice < 93) return action::exposure;
  if (choice < 96) return action::window;
  return choice < 99 ? action::own_region : action::pause;
}

step make_step(random& dice, const script& all, const meeting_plan& plan, bool of_client, bool lasts) {
  step made{.what = make_action(dice, all), .memory = static_cast<lending>(dice.below(lasts ? 4 : 2))};
  // Destroyed in the middle, it would take back what its own writes are on their way to.
  if (!lasts && (made.what == action::exposure || made.what == action::window || made.what == action::own_region))
    made.what = action::pause;
  const std::uint32_t largest = of_client ? plan.server.receive_size : plan.client.receive_size;
  const bool message = made.what == action::send || made.what == action::batch;
  made.bytes = narrow<std::uint32_t>(
      message ? std::min<std::uint64_t>(dice.one_in(8) ? largest : dice.skewed(largest), plan.area_bytes)
              : dice.skewed(plan.area_bytes));
  made.offset = narrow<std::uint32_t>(dice.below(plan.area_bytes - made.bytes + 1));
  made.immediate = dice.one_in(3);
  made.count = narrow<std::uint32_t>(1 + dice.below(6));
  const bool borrows = made.memory == lending::borrowed || made.memory == lending::gathered;
  if (dice.one_in(borrows ? 60 : 10)) made.stop_after_us = narrow<std::uint32_t>(1 + dice.skewed(300));
  return made;
}

bool is_damaged(const meeting_plan& plan) {
  const auto damages = [](const fault& one) { return one.what == fault_kind::damage; };
  return std::any_of(plan.faults.begin(), plan.faults.end(), damages);
}

meeting_plan make_meeting(random& dice, const script& all) {
  meeting_plan plan{.start_us = narrow<std::uint32_t>(dice.skewed(2000)),
                    .client = make_side(dice, all),
                    .server = make_side(dice, all),
                    .area_bytes = narrow<std::uint32_t>(dice.one_in(10) ? 150'000 : 256 + dice.skewed(20'000))};
  if (all.net.packet_bytes < 512 || all.net.socket_bytes < 512) plan.area_bytes = std::min(plan.area_bytes, 3000U);
  const std::uint64_t lanes = 1 + dice.below(5);
  for (std::uint64_t i = 0; i < lanes; ++i) {
    lane one{.of_client = dice.one_in(2)};
    if (dice.one_in(12)) one.destroyed_after_us = narrow<std::uint32_t>(1 + dice.skewed(3000));
    const std::uint64_t steps = 1 + dice.skewed(15);
    for (std::uint64_t k = 0; k < steps; ++k) {
      one.steps.push_back(make_step(dice, all, plan, one.of_client, one.destroyed_after_us == 0));
    }
    plan.lanes.push_back(std::move(one));
  }
  plan.how = static_cast<ending>(dice.below(dice.one_in(4) ? 11 : 7));
  if (dice.one_in(4)) plan.end_after_us = narrow<std::uint32_t>(1 + dice.skewed(3000));
  const bool scarce = plan.client.share_receives || plan.server.share_receives;
  if (dice.one_in(scarce ? 2 : 5)) {
    const fault one{.what = static_cast<fault_kind>(dice.below(6)),
                    .after_us = narrow<std::uint32_t>(dice.skewed(3000))};
    plan.faults.push_back(one);
  }
  return plan;
}

// Over several executors, or not.
void spread(script& made) {
  random dice(~made.seed);
  made.executors = narrow<std::uint32_t>(dice.one_in(4) ? 1 : dice.between(2, 3));
  const auto draw = [&] { return narrow<std::uint32_t>(dice.below(made.executors)); };
  made.listener_home = draw();
  for (meeting_plan& plan : made.meetings) {
    plan.client_home = draw();
    plan.server_home = draw();
    plan.pass_on = made.executors != 1 && dice.one_in(3);
    for (lane& one : plan.lanes) {
      // One that is destroyed cannot wait for another executor.
      const bool stays = one.destroyed_after_us != 0 || dice.one_in(2);
      one.home = stays ? (one.of_client ? plan.client_home : plan.server_home) : draw();
    }
  }
}

// By dice of its own, so that what a seed stands for elsewhere stays the same.
void lend_directly(script& made) {
  random dice(made.seed * 2 + 0x6469'7265);
  if (dice.one_in(6)) made.declined_share = narrow<std::uint32_t>(dice.between(100, 1000));
  if (dice.one_in(6)) made.unsent_share = narrow<std::uint32_t>(dice.between(100, 700));
  for (meeting_plan& plan : made.meetings) {
    for (side_options* const side : {&plan.client, &plan.server}) {
      side->direct = !dice.one_in(3);
      side->direct_windows = dice.one_in(2);
    }
    if (dice.one_in(4)) plan.oversteps = static_cast<overstepping>(dice.between(1, 3));
    const bool in_pieces = dice.one_in(4);
    plan.overstepped_bytes =
        narrow<std::uint32_t>(8 * (in_pieces ? dice.between(33'000, 90'000) : dice.between(2, 3000)));
    plan.overstepped_after_us = narrow<std::uint32_t>(1 + dice.skewed(2000));
    if (dice.one_in(8)) plan.dies_in_loan = narrow<std::uint32_t>(1 + dice.below(24));
  }
}

// By dice of its own as well. One that is destroyed in the middle of a list has the memory of others.
void make_lists(script& made) {
  random dice(made.seed * 2 + 0x6c69'7374);
  for (meeting_plan& plan : made.meetings) {
    for (lane& one : plan.lanes) {
      for (step& each : one.steps) {
        const bool may_be = each.what == action::batch || each.what == action::write;
        if (!may_be || one.destroyed_after_us != 0 || !dice.one_in(3)) continue;
        each.what = action::list;
        each.bytes = std::min(each.bytes, narrow<std::uint32_t>(1 + dice.skewed(4000)));
        each.offset = narrow<std::uint32_t>(dice.below(plan.area_bytes - each.bytes + 1));
        each.count = narrow<std::uint32_t>(1 + dice.skewed(40));
      }
    }
  }
}

// ---- several rails ----

fault make_fault_of_rail(random& dice, const script& all) {
  fault made;
  const std::uint64_t choice = dice.below(100);
  made.what = choice < 30   ? fault_kind::reset
              : choice < 60 ? fault_kind::cut
              : choice < 85 ? fault_kind::stall
              : choice < 92 ? fault_kind::client_send_fails
                            : fault_kind::server_send_fails;
  constexpr std::array<std::uint64_t, 3> spans_us{3'000, 40'000, 500'000};
  made.after_us = narrow<std::uint32_t>(dice.below(spans_us[dice.below(spans_us.size())]));
  made.rail = narrow<std::uint32_t>(dice.below(all.rails.size()));
  if (made.what == fault_kind::stall) made.lasts_us = narrow<std::uint32_t>(1 + dice.skewed(400'000));
  if (made.what == fault_kind::cut && !dice.one_in(4))
    made.lasts_us = narrow<std::uint32_t>(1 + dice.skewed(3'000'000));
  return made;
}

std::uint32_t make_resume_within(random& dice) {
  const std::uint64_t choice = dice.below(10);
  if (choice < 3) return 0;
  return choice < 5 ? narrow<std::uint32_t>(1 + dice.skewed(2000)) : 60'000;
}

// Steps that are spread over all rails, and some that leave the time for faults to show.
void enlarge(step& what, random& dice, const meeting_plan& plan) {
  const bool is_transfer =
      what.what == action::write || what.what == action::read || what.what == action::write_and_tell;
  if (dice.one_in(8)) {
    what.what = action::pause;
  } else if (is_transfer && dice.one_in(2)) {
    what.bytes = narrow<std::uint32_t>(plan.area_bytes - dice.skewed(plan.area_bytes / 2));
    what.offset = narrow<std::uint32_t>(dice.below(plan.area_bytes - what.bytes + 1));
  }
}

void give_rails(meeting_plan& plan, random& dice, const script& all) {
  plan.settles = !dice.one_in(4);
  plan.area_bytes = std::max(plan.area_bytes, dice.one_in(3) ? 12'000U : 3000U);
  plan.client.share_receives = plan.server.share_receives = false;
  plan.client.resume_within_ms = make_resume_within(dice);
  plan.server.resume_within_ms = dice.one_in(4) ? make_resume_within(dice) : plan.client.resume_within_ms;
  for (lane& one : plan.lanes) {
    for (step& what : one.steps) enlarge(what, dice, plan);
  }
  plan.faults.clear();
  const std::uint64_t faults = dice.one_in(8) ? 0 : 1 + dice.skewed(7);
  for (std::uint64_t i = 0; i < faults; ++i) plan.faults.push_back(make_fault_of_rail(dice, all));
  if (dice.one_in(6)) plan.how = ending::server_forgets;
  if (plan.end_after_us != 0) plan.end_after_us *= narrow<std::uint32_t>(1 + dice.below(100));
}

using nlohmann::json;

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> words, Arguments&&... what) {
  throw std::invalid_argument(fmt::format(words, std::forward<Arguments>(what)...));
}

// With one of everything.
json make_model() {
  meeting_plan plan;
  plan.lanes.resize(1);
  plan.lanes.front().steps.resize(1);
  plan.faults.resize(1);
  script whole;
  whole.rails.resize(1);
  whole.meetings.push_back(plan);
  return whole;
}

std::string kind_of(const json& model) {
  if (model.is_object()) return "{...}";
  if (model.is_array()) return "[...]";
  if (model.is_boolean()) return "true or false";
  return model.is_string() ? "a word" : "a whole number";
}

// The model has all names that there are, and one item of each list.
void check_shape(const json& given, const json& model, const std::string& path) {
  if (given.type() != model.type()) {
    const std::string said = given.is_structured() ? kind_of(given) : given.dump();
    refuse("{} is {}, and has to be {}", path, said, kind_of(model));
  }
  if (model.is_array()) {
    for (std::size_t i = 0; i < given.size(); ++i) check_shape(given[i], model[0], fmt::format("{}[{}]", path, i));
  }
  if (!model.is_object()) return;
  for (const auto& [name, value] : model.items()) {
    if (!given.contains(name)) refuse("{} has no \"{}\"", path, name);
  }
  for (const auto& [name, value] : given.items()) {
    if (!model.contains(name)) refuse("{} has \"{}\", which means nothing", path, name);
    check_shape(value, model[name], path + "." + name);
  }
}

// What was understood as something else: a word that there is not, or a number that is too large.
void check_understood(const json& given, const json& understood, const std::string& path) {
  if (given == understood) return;
  if (given.is_array()) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      check_understood(given[i], understood[i], fmt::format("{}[{}]", path, i));
    }
  } else if (given.is_object()) {
    for (const auto& [name, value] : given.items()) check_understood(value, understood[name], path + "." + name);
  } else {
    refuse("{} is {}, which {}", path, given.dump(), given.is_string() ? "means nothing" : "is too large");
  }
}

json parse(std::string_view text) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& why) {
    const auto good = text.substr(0, why.byte);
    refuse("the script is no JSON: nobody understands line {}", 1 + std::count(good.begin(), good.end(), '\n'));
  }
}

}  // namespace

script make_script(std::uint64_t seed) {
  random dice(seed);
  script made{.seed = seed,
              .net = make_conditions(dice),
              .shuffle_tasks = dice.one_in(2),
              .one_device = dice.one_in(3),
              .arena_bytes = 65'536U << dice.below(4),
              .tight_pool = dice.one_in(5),
              .shared_depth = narrow<std::uint16_t>(1 + dice.skewed(63))};
  if (dice.one_in(12)) made.failing_mappings = narrow<std::uint32_t>(1 + dice.below(3));
  if (dice.one_in(8)) made.failing_accepts = narrow<std::uint32_t>(1 + dice.below(3));
  const std::uint64_t meetings = 1 + dice.below(3);
  for (std::uint64_t i = 0; i < meetings; ++i) made.meetings.push_back(make_meeting(dice, made));
  if (dice.one_in(25)) made.removal_us = narrow<std::uint32_t>(1 + dice.skewed(5000));
  for (meeting_plan& plan : made.meetings) plan.eager = dice.one_in(3);
  spread(made);
  made.checksum = !dice.one_in(3);
  made.place_unchecked = dice.one_in(3);
  made.allow_shared_windows = !dice.one_in(4);
  if (std::any_of(made.meetings.begin(), made.meetings.end(), is_damaged)) {  // else nobody would notice, or too late
    made.checksum = true;
    made.place_unchecked = false;
  }
  lend_directly(made);
  make_lists(made);
  return made;
}

// By dice of its own. In a network that needs longer for a few bytes than a rail may be silent, none would stay.
void give_rails(script& what) {
  random dice(what.seed * 2 + 0x7261'696c);
  [[maybe_unused]] const std::uint64_t mix = dice.below(3);
  what.rails.assign(dice.one_in(3) ? 3 : 2, rail_kind::tcp);
#ifdef WEFT_WITH_VERBS
  if (mix == 1) std::fill(what.rails.begin(), what.rails.end(), rail_kind::rdma);
  if (mix == 2) what.rails[dice.below(what.rails.size())] = rail_kind::rdma;
#endif
  what.net.longest_delay_ns = std::min<std::uint64_t>(what.net.longest_delay_ns, 3'000'000);
  what.net.socket_bytes = std::max<std::uint64_t>(what.net.socket_bytes, 4096);
  what.net.packet_bytes = std::max<std::uint64_t>(what.net.packet_bytes, 512);
  for (meeting_plan& plan : what.meetings) give_rails(plan, dice, what);
}

script make_small_script(std::uint64_t seed) {
  script made = make_script(seed);
  made.failing_mappings = made.failing_accepts = made.removal_us = 0;
  made.declined_share = made.unsent_share = 0;
  made.meetings.resize(1);
  meeting_plan& plan = made.meetings.front();
  plan.faults.clear();
  plan.dies_in_loan = 0;
  plan.overstepped_bytes = std::min(plan.overstepped_bytes, 4096U);
  plan.area_bytes = std::min(plan.area_bytes, 2000U);
  plan.lanes.resize(std::min<std::size_t>(plan.lanes.size(), 3));
  for (lane& one : plan.lanes) {
    one.steps.resize(std::min<std::size_t>(one.steps.size(), 4));
    for (step& what : one.steps) {
      what.bytes = std::min(what.bytes, plan.area_bytes / 2);
      what.offset = std::min(what.offset, plan.area_bytes - what.bytes);
    }
  }
  return made;
}

std::string to_text(const script& what) { return nlohmann::json(what).dump(); }

script parse_script(std::string_view text) {
  const json given = parse(text);
  check_shape(given, make_model(), "the script");
  script made = given.get<script>();
  check_understood(given, made, "the script");
  return made;
}

std::size_t length_of(const script& what) noexcept {
  std::size_t length = what.failing_mappings + what.failing_accepts + (what.removal_us != 0 ? 1 : 0) +
                       (what.declined_share != 0 ? 1 : 0) + (what.unsent_share != 0 ? 1 : 0) + what.executors - 1;
  for (const meeting_plan& plan : what.meetings) {
    length += 1 + plan.faults.size() + (plan.dies_in_loan != 0 ? 1 : 0);
    length += plan.oversteps != overstepping::none ? 1 : 0;
    for (const lane& one : plan.lanes) length += 1 + one.steps.size();
  }
  return length;
}

}  // namespace weft::sim
