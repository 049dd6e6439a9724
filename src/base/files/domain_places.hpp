// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

namespace gpushm::base {

/// The domains of the machine's brokers; in a container, those that are mounted.
inline constexpr const char* machine_domains = "/run/gpushm/d";

/// The default domain's name.
inline constexpr const char* default_domain = "default";

/// The socket of a domain in a directory of domains.
[[nodiscard]] std::string socket_in(const std::string& place, std::string_view domain);

/// The socket of the machine's domain that GPUSHM_IPC_DOMAIN names. Throws invalid_argument if
/// `domain` is not a name. src/ipc/domain.c has the same rule.
[[nodiscard]] std::string chosen_machine_socket(std::string_view domain);

/// A directory with domains, as `socket_in` expects it.
struct domains_place {
  std::string path;
  bool exists = false;  ///< the directory in which `path` is created exists
  /// Why it must not be used, as the cause of an error; empty: it may be.
  std::string refusal = {};
  std::string next_step = {};  ///< for `refusal`
};

/// The directories of a user's own brokers, in the order of the search:
/// `$XDG_RUNTIME_DIR/gpushm/d`,
/// `/run/user/UID/gpushm/d`, `/tmp/gpushm-UID/d`. A directory on the way that belongs to another
/// user, that others can write to, or that is a symbolic link below the first is refused: others
/// could put a broker of theirs there.
[[nodiscard]] std::vector<domains_place> user_domains();

/// The same, with a user's number, `$XDG_RUNTIME_DIR`, and the directories that contain those of
/// all users, for tests.
struct user_directories {
  unsigned uid = 0;
  std::string runtime = {};         ///< `$XDG_RUNTIME_DIR`; empty: not set
  std::string users = "/run/user";  ///< has a directory for each user that is logged in
  std::string temporary = "/tmp";
};
[[nodiscard]] std::vector<domains_place> user_domains(const user_directories& directories);

/// The first of `places` that can be used. Throws permission_denied for one that is refused before
/// it: a broker elsewhere would surprise who has set the variable.
[[nodiscard]] const domains_place& place_to_serve(const std::vector<domains_place>& places);

/// Creates `place.path` and the domain's directory in it, for this user only (0700), if they are
/// missing, and returns the path of the socket in it. Throws permission_denied for a directory that
/// `user_domains` would refuse, and as mkdir.
[[nodiscard]] std::string create_user_domain(const domains_place& place, const std::string& domain);

/// Returns the socket for a broker that is given none, `/run/gpushm/d/DOMAIN/socket` if this
/// process may create that, else the one in `place_to_serve`, and creates the directories that are
/// missing (0755, else 0700). Throws as `create_user_domain` and `place_to_serve`.
[[nodiscard]] std::string socket_to_serve(const std::string& domain);

/// The names of the directories in a place, sorted; empty if there is no such place.
[[nodiscard]] std::vector<std::string> domains_in(const std::string& place);

/// Whether a program listens on a Unix socket of `type`, a broker's by default: it connects, and
/// closes the connection again.
[[nodiscard]] bool is_listening(const std::string& socket, int type = SOCK_SEQPACKET);

/// The sockets on which a program listens of those that a client finds if it is given none: that of
/// the only domain in `machine_domains`, and those of all domains of this user.
[[nodiscard]] std::vector<std::string> listening_sockets();

}  // namespace gpushm::base
