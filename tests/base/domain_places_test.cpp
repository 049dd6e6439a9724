// SPDX-License-Identifier: Apache-2.0
#include "base/files/domain_places.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/files/unique_fd.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::base {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class domain_places : public testing::Test {
 protected:
  domain_places() {
    from_.uid = ::geteuid();
    from_.users = directory_ / "users";
    from_.temporary = directory_ / "tmp";
    fs::create_directories(from_.users);
    fs::create_directories(from_.temporary);
    fs::permissions(from_.temporary, fs::perms(01777));
  }
  /// A directory of this user only.
  std::string own(const std::string& name) {
    const std::string path = directory_ / name;
    fs::create_directories(path);
    fs::permissions(path, fs::perms(0700));
    return path;
  }
  [[nodiscard]] std::string number() const { return std::to_string(from_.uid); }
  [[nodiscard]] std::vector<std::string> paths() const {
    std::vector<std::string> result;
    for (const domains_place& each : user_domains(from_)) {
      result.push_back(each.path);
    }
    return result;
  }
  /// The error of `place_to_serve`.
  [[nodiscard]] std::string refusal() const {
    const auto places = user_domains(from_);
    try {
      return "serves at " + place_to_serve(places).path;
    } catch (const error& why) {
      EXPECT_EQ(why.code(), errc::permission_denied);
      EXPECT_FALSE(why.next_step().empty());
      return why.cause();
    }
  }

  gpushm_testing::temp_dir directory_{0755};
  user_directories from_;
};

TEST_F(domain_places, are_searched_in_order) {
  const std::string of_user = from_.users + "/" + number() + "/gpushm/d";
  const std::string temporary = from_.temporary + "/gpushm-" + number() + "/d";
  EXPECT_THAT(paths(), ElementsAre(of_user, temporary));
  from_.runtime = own("runtime") + "//";
  EXPECT_THAT(paths(), ElementsAre(directory_ / "runtime/gpushm/d", of_user, temporary));
  from_.runtime = own("users/" + number()) + "/";
  EXPECT_THAT(paths(), ElementsAre(of_user, temporary)) << "the usual one is not searched twice";
}

TEST_F(domain_places, a_broker_uses_the_first_that_exists) {
  EXPECT_EQ(refusal(), "serves at " + from_.temporary + "/gpushm-" + number() + "/d");
  from_.runtime = directory_ / "removed";
  EXPECT_EQ(refusal(), "serves at " + from_.temporary + "/gpushm-" + number() + "/d");
  own("users/" + number());
  EXPECT_EQ(refusal(), "serves at " + from_.users + "/" + number() + "/gpushm/d");
  from_.runtime = own("runtime");
  EXPECT_EQ(refusal(), "serves at " + directory_.path() + "/runtime/gpushm/d");
}

TEST_F(domain_places, of_others_are_refused) {
  from_.runtime = own("runtime");
  const std::string part = own("runtime/gpushm");
  const std::string last = own("runtime/gpushm/d");
  for (const std::string& each : {from_.runtime, part, last}) {
    for (const unsigned mode : {0720U, 0702U, 0777U, 01777U}) {
      fs::permissions(each, fs::perms(mode));
      EXPECT_EQ(refusal(), each + " is writable by others");
    }
    fs::permissions(each, fs::perms(0755));
    EXPECT_THAT(refusal(), HasSubstr("serves at"));
  }
  from_.uid = ::geteuid() + 1;
  EXPECT_EQ(refusal(),
            from_.runtime + " belongs to uid " + std::to_string(::geteuid()) +
                ", not to this process's uid " + number());
  from_.uid = ::geteuid();
  for (const std::string& each : {last, part}) {  // another user could have created the link
    fs::remove_all(each);
    fs::create_symlink(own("elsewhere"), each);
    EXPECT_EQ(refusal(), each + " is not a directory");
    fs::remove(each);
  }
  from_.runtime = "relative";
  EXPECT_EQ(refusal(), "XDG_RUNTIME_DIR=relative is not an absolute path");
  from_.runtime = directory_ / "link";  // chosen by the user
  fs::create_symlink(directory_ / "runtime", from_.runtime);
  EXPECT_EQ(refusal(), "serves at " + from_.runtime + "/gpushm/d");
}

TEST_F(domain_places, in_the_temporary_directory_are_private) {
  const std::string place = from_.temporary + "/gpushm-" + number();
  fs::create_symlink(own("elsewhere"), place);
  EXPECT_EQ(refusal(), place + " is not a directory");
  fs::remove(place);
  own("tmp/gpushm-" + number());
  fs::permissions(place, fs::perms(0777));
  EXPECT_EQ(refusal(), place + " is writable by others");
}

TEST_F(domain_places, are_created_for_this_user_only) {
  const mode_t mask = ::umask(0);
  const auto places = user_domains(from_);
  const std::string socket = create_user_domain(place_to_serve(places), "team");
  ::umask(mask);
  EXPECT_EQ(socket, places.back().path + "/team/socket");
  for (fs::path each = fs::path(socket).parent_path(); each != from_.temporary;
       each = each.parent_path()) {
    EXPECT_EQ(fs::status(each).permissions(), fs::perms(0700)) << each;
  }
  EXPECT_EQ(create_user_domain(places.back(), "team"), socket) << "the second time, too";
  EXPECT_THAT(domains_in(places.back().path), ElementsAre("team"));
  fs::permissions(places.back().path + "/team", fs::perms(0777));
  EXPECT_THROW(static_cast<void>(create_user_domain(places.back(), "team")), error);
  EXPECT_THAT(domains_in(directory_ / "none"), IsEmpty());
}

TEST_F(domain_places, a_listening_socket_is_recognised) {
  const std::string path = directory_ / "socket";
  EXPECT_FALSE(is_listening(path));
  EXPECT_FALSE(is_listening(std::string(200, 'x')));
  unique_fd server(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(&address.sun_path[0], path.c_str(), path.size());
  ASSERT_EQ(::bind(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_FALSE(is_listening(path));
  ASSERT_EQ(::listen(server.get(), 0), 0);
  EXPECT_TRUE(is_listening(path));
  EXPECT_TRUE(is_listening(path)) << "its backlog is full";
  server.reset();
  EXPECT_FALSE(is_listening(path));
}

}  // namespace
}  // namespace gpushm::base
