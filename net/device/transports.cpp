// SPDX-License-Identifier: Apache-2.0
#include <weft/net/add_transport.hpp>
#include <weft/net/device/transports.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/net/shm/transport.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/report.hpp>
#ifdef WEFT_WITH_IWARP
#include <weft/net/iwarp/transport.hpp>
#endif
#ifdef WEFT_WITH_VERBS
#include <weft/net/verbs/transport.hpp>
#endif
#ifdef WEFT_WITH_FABRIC
#include <weft/net/fabric/transport.hpp>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace weft::net {
namespace {

using software_home = std::shared_ptr<software::domain>;

// How "auto" uses a transport.
enum class automatic_use : std::uint8_t {
  preferred,  // if it is there
  otherwise,  // if no preferred transport is there
  beside,     // in addition to the chosen transport and tried before it, for peers of this machine
  never,      // used only by name
};

// A transport of this build: the part of a device's name before the colon.
struct transport_kind {
  std::string_view name;
  std::string_view spellings;  // the names that device::open() takes, for errors: "verbs, verbs:NAME, verbs:ADDRESS"
  bool takes_name;             // whether something may follow the colon
  automatic_use use;
  bool (*is_there)();
  // Opens the transport. `name` is what follows the colon; if it is empty, the transport chooses. `home` is the domain
  // that transports in software share; if it is null, such a transport makes its own. Throws weft::error.
  std::unique_ptr<transport> (*open)(std::string_view name, const device_options& options, const software_home& home);
};

constexpr std::string_view shared_memory = "shm";

constexpr std::array kinds{
#ifdef WEFT_WITH_IWARP
    transport_kind{.name = "iwarp",
                   .spellings = "iwarp",
                   .takes_name = false,
                   .use = automatic_use::otherwise,
                   .is_there = [] { return true; },
                   .open =
                       [](std::string_view, const device_options& options, const software_home& home) {
                         return home != nullptr ? iwarp::open_transport(options.iwarp, home)
                                                : iwarp::open_transport(options.iwarp);
                       }},
#endif
#ifdef WEFT_WITH_VERBS
    transport_kind{.name = "verbs",
                   .spellings = "verbs, verbs:NAME, verbs:ADDRESS, verbs:*",
                   .takes_name = true,
                   .use = automatic_use::preferred,
                   .is_there = [] { return verbs::has_device(); },
                   .open = [](std::string_view name, const device_options& options,
                              const software_home&) { return verbs::open_transport(name, options.verbs); }},
#endif
#ifdef WEFT_WITH_FABRIC
    transport_kind{.name = "fabric",
                   .spellings = "fabric, fabric:PROVIDER",
                   .takes_name = true,
                   .use = automatic_use::never,
                   .is_there = [] { return false; },
                   .open = [](std::string_view name, const device_options&,
                              const software_home&) { return fabric::open_transport(name); }},
#endif
    transport_kind{.name = shared_memory,
                   .spellings = shared_memory,
                   .takes_name = false,
                   .use = automatic_use::beside,
                   .is_there = [] { return true; },
                   .open =
                       [](std::string_view, const device_options& options, const software_home& home) {
                         return home != nullptr ? shm::open_transport(options.shm, home)
                                                : shm::open_transport(options.shm);
                       }},
};

const transport_kind* find_kind(std::string_view name) {
  const auto found =
      std::find_if(kinds.begin(), kinds.end(), [&](const transport_kind& each) { return each.name == name; });
  return found != kinds.end() ? &*found : nullptr;
}

// The transports of add_transport(). An opener is copied, and called without the mutex, because it may itself call
// add_transport().
class added_transports {
 public:
  static added_transports& all() {
    static added_transports instance;
    return instance;
  }

  [[nodiscard]] bool add(const std::string& name, transport_opener open) {
    const std::lock_guard lock(mutex_);
    return openers_.try_emplace(name, std::move(open)).second;
  }
  // Empty if there is none of that name.
  [[nodiscard]] transport_opener find(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const auto found = openers_.find(name);
    return found != openers_.end() ? found->second : transport_opener();
  }
  [[nodiscard]] std::string names() {
    const std::lock_guard lock(mutex_);
    std::string names;
    for (const auto& [name, open] : openers_) names += fmt::format(", {0}, {0}:...", name);
    return names;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, transport_opener, std::less<>> openers_;
};

std::string known_names() {
  std::string names = "auto";
  for (const transport_kind& each : kinds) names += fmt::format(", {}", each.spellings);
  names += added_transports::all().names();
  return names + ", rails of these (without auto and shm) joined by +, and lists of all but auto separated by commas";
}

// A hint for names by which these transports are known elsewhere.
std::string hint_for(std::string_view kind) {
  constexpr std::array<std::string_view, 5> devices{"ib", "infiniband", "rdma", "roce", "rxe"};
  if (std::find(devices.begin(), devices.end(), kind) != devices.end()) return " (RDMA devices are verbs)";
  return kind == "tcp" ? " (RDMA over TCP is iwarp)" : "";
}

// Throws the reason why a name is refused: a transport that this build leaves out, or an unknown one.
[[noreturn]] void refuse(std::string_view kind) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> optional{
      {{"iwarp", "WEFT_WITH_IWARP"}, {"verbs", "WEFT_WITH_VERBS"}, {"fabric", "WEFT_WITH_FABRIC"}}};
  for (const auto& [name, option] : optional) {  // a kind that this build has does not get here by its name alone
    if (kind != name) continue;
    throw error(errc::not_supported, fmt::format("this build has no {} (the CMake option {})", kind, option));
  }
  throw error(errc::not_supported,
              fmt::format("\"{}\" is unknown{}; this build knows: {}", kind, hint_for(kind), known_names()));
}

std::unique_ptr<transport> open_named(std::string_view name, const device_options& options, const software_home& home) {
  const std::size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  const std::string_view rest = colon != std::string_view::npos ? name.substr(colon + 1) : std::string_view();
  if (const transport_kind* const own = find_kind(kind)) {
    if (colon != std::string_view::npos && !own->takes_name) refuse(name);
    return own->open(rest, options, home);
  }
  const transport_opener open = added_transports::all().find(kind);
  if (open == nullptr) refuse(kind);
  if (auto made = open(rest)) return made;
  throw error(errc::invalid_argument, fmt::format("the function that opens {} has made no transport", kind));
}

std::vector<std::string_view> split(std::string_view names, char separator) {
  std::vector<std::string_view> all;
  for (;;) {
    const std::size_t end = names.find(separator);
    all.push_back(names.substr(0, end));
    if (end == std::string_view::npos) return all;
    names.remove_prefix(end + 1);
  }
}

// Names all RDMA devices that are ready, as rails; reports those beyond `at_most`, and leaves them out. If none is
// ready, names "verbs", because opening that gives the reason.
std::string every_device(std::size_t at_most) {
#ifdef WEFT_WITH_VERBS
  std::vector<std::string> names = verbs::ready_devices();
  if (names.size() > at_most) {
    const std::vector<std::string> left_out(names.begin() + static_cast<std::ptrdiff_t>(at_most), names.end());
    names.resize(at_most);
    const std::string text = fmt::format("\"verbs:*\" leaves out {}: a connection has at most {} rails",
                                         fmt::join(left_out, ", "), rails::max_rails);
    send_report({.kind = report_kind::warning, .text = text});
  }
  if (!names.empty()) return fmt::format("verbs:{}", fmt::join(names, "+verbs:"));
#endif
  static_cast<void>(at_most);
  return "verbs";
}

// Replaces "verbs:*" by the devices that it stands for.
std::string expanded(std::string_view names) {
  std::vector<std::string> all;
  for (const std::string_view element : split(names, ',')) {
    const auto parts = split(element, '+');
    const std::size_t room = rails::max_rails - std::min(rails::max_rails - 1, parts.size() - 1);
    std::vector<std::string> names_of_rails;
    names_of_rails.reserve(parts.size());
    for (const std::string_view part : parts) {
      names_of_rails.push_back(part == "verbs:*" ? every_device(room) : std::string(part));
    }
    all.push_back(fmt::format("{}", fmt::join(names_of_rails, "+")));
  }
  return fmt::format("{}", fmt::join(all, ","));
}

// Opens rails. Only a transport in software may be named twice: two rails over TCP may take two ways through the
// network, but two over one RDMA device would end together.
std::unique_ptr<transport> open_rails(std::string_view names, const device_options& options,
                                      const software_home& home) {
  std::vector<std::unique_ptr<transport>> ways;
  for (const std::string_view name : split(names, '+')) {
    if (name == shared_memory)
      throw error(errc::invalid_argument, "shm cannot be a rail: shared memory lasts as long as the peer itself");
    auto made = open_named(name, options, home);
    const auto is_the_same = [&](const auto& other) { return other->name() == made->name(); };
    if (made->shared_domain() != home && std::any_of(ways.begin(), ways.end(), is_the_same)) {
      throw error(errc::invalid_argument, fmt::format("{} is named twice among the rails", made->name()));
    }
    ways.push_back(std::move(made));
  }
  return rails::open_transport(std::move(ways));
}

// Wraps a transport, so that its connections may resume. Returns shared memory as it is, because it lasts as long as
// the peer.
std::unique_ptr<transport> that_resumes(std::unique_ptr<transport> way) {
  if (way->name() == shared_memory) return way;
  std::vector<std::unique_ptr<transport>> one;
  one.push_back(std::move(way));
  return rails::open_transport(std::move(one));
}

// Opens the first transport whose use by "auto" is `use`; null if there is none, or it has no device here.
std::unique_ptr<transport> open_any(automatic_use use, const device_options& options, const software_home& home) {
  const auto found =
      std::find_if(kinds.begin(), kinds.end(), [&](const transport_kind& each) { return each.use == use; });
  return found != kinds.end() && found->is_there() ? found->open({}, options, home) : nullptr;
}

// Opens what "auto" stands for. Unless shm_options::automatic is false, peers of this machine are reached through
// shared memory: its registrations cost little compared to those of an RDMA device.
std::vector<found_transport> open_automatically(const device_options& options) {
  software_home home;
  if (options.shm.automatic) home = std::make_shared<software::domain>(system_calls::kernel(), "iwarp");
  std::vector<found_transport> all;
  all.push_back(find_transport([&] { return open_any(automatic_use::preferred, options, home); },
                               [&] { return open_any(automatic_use::otherwise, options, home); }));
  all.front().made = that_resumes(std::move(all.front().made));
  if (!options.shm.automatic) return all;
  if (all.front().made->shared_domain() != home) home = nullptr;
  all.insert(all.begin(), {.made = open_any(automatic_use::beside, options, home)});
  std::swap(all.front().passed_over, all.back().passed_over);
  return all;
}

// Makes a domain for the transports in software to share; null if `names` has at most one of them.
software_home home_of(std::string_view names) {
  std::size_t count = 0;
  for (const std::string_view each : split(names, ',')) {
    for (const std::string_view part : split(each, '+')) count += part == "shm" || part == "iwarp" ? 1U : 0U;
  }
  return count > 1 ? std::make_shared<software::domain>(system_calls::kernel(), "iwarp") : nullptr;
}

}  // namespace

void add_transport(const std::string& name, transport_opener open) {
  const auto is_plain = [](unsigned char each) { return std::isalnum(each) != 0 || each == '_' || each == '-'; };
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_plain)) {
    throw error(errc::invalid_argument,
                fmt::format("add a transport \"{}\": its name must be of letters, digits, \"_\" and \"-\"", name));
  }
  if (open == nullptr) {
    throw error(errc::invalid_argument, fmt::format("add a transport \"{}\": no function opens it", name));
  }
  if (name == "auto" || find_kind(name) != nullptr || !added_transports::all().add(name, std::move(open))) {
    throw error(errc::invalid_argument, fmt::format("add a transport \"{}\": there is one of that name", name));
  }
}

std::vector<found_transport> open_transports(std::string_view given, const device_options& options) {
  if (given == "auto") return open_automatically(options);
  const std::string names = expanded(given);
  const software_home home = home_of(names);
  std::vector<found_transport> all;
  for (const std::string_view name : split(names, ',')) {
    const bool is_railed = name.find('+') != std::string_view::npos;
    auto made = is_railed ? open_rails(name, options, home) : that_resumes(open_named(name, options, home));
    const auto is_the_same = [&](const found_transport& other) { return other.made->name() == made->name(); };
    if (std::any_of(all.begin(), all.end(), is_the_same)) {
      throw error(errc::invalid_argument, fmt::format("{} is in the list twice", made->name()));
    }
    all.push_back({.made = std::move(made)});
  }
  return all;
}

}  // namespace weft::net
