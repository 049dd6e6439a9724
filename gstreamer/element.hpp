// SPDX-License-Identifier: Apache-2.0
// What gpushmsink and gpushmsrc have in common as GObject types.
#pragma once

#include <gst/gst.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gstreamer/element_support.hpp"

namespace gpushm::gstreamer {

/// A property of an element, which is a member of its `Settings`.
template <typename Settings>
struct property {
  GParamSpec* spec;
  std::function<void(Settings&, const GValue*)> set;
  std::function<void(const Settings&, GValue*)> get;
};

inline constexpr auto property_flags = static_cast<GParamFlags>(
    static_cast<int>(G_PARAM_READWRITE) | static_cast<int>(G_PARAM_STATIC_STRINGS) |
    static_cast<int>(GST_PARAM_MUTABLE_READY));

template <typename Settings>
property<Settings> text_property(const char* name,
                                 const char* nick,
                                 const char* description,
                                 std::string Settings::*member) {
  return {g_param_spec_string(name, nick, description, "", property_flags),
          [member](Settings& settings, const GValue* value) { settings.*member = text_of(value); },
          [member](const Settings& settings, GValue* value) {
            g_value_set_string(value, (settings.*member).c_str());
          }};
}

template <typename Settings>
property<Settings> number_property(const char* name,
                                   const char* nick,
                                   const char* description,
                                   guint least,
                                   guint most,
                                   std::uint32_t Settings::*member) {
  return {
      g_param_spec_uint(name, nick, description, least, most, Settings().*member, property_flags),
      [member](Settings& settings, const GValue* value) {
        settings.*member = g_value_get_uint(value);
      },
      [member](const Settings& settings, GValue* value) {
        g_value_set_uint(value, settings.*member);
      }};
}

/// In milliseconds.
template <typename Settings>
property<Settings> time_property(const char* name,
                                 const char* nick,
                                 const char* description,
                                 guint least,
                                 std::chrono::milliseconds Settings::*member) {
  const auto number = [member](const Settings& settings) {
    return static_cast<guint>((settings.*member).count());
  };
  return {g_param_spec_uint(
              name, nick, description, least, G_MAXINT, number(Settings()), property_flags),
          [member](Settings& settings, const GValue* value) {
            settings.*member = std::chrono::milliseconds(g_value_get_uint(value));
          },
          [number](const Settings& settings, GValue* value) {
            g_value_set_uint(value, number(settings));
          }};
}

/// The channel and the broker, which both elements have.
template <typename Settings>
std::vector<property<Settings>> channel_properties() {
  return {
      text_property("channel", "Channel", "Name of the channel", &Settings::channel),
      text_property(
          "socket",
          "Socket",
          "Path of the broker's socket; empty: $GPUSHM_SOCKET, else the one domain of this machine",
          &Settings::socket)};
}

/// An element with a `State`, which has `settings`, protected by the element's object lock, a
/// `gate` and a `channel`.
template <typename Parent, typename ParentClass, typename State>
struct element_type {
  struct instance {
    Parent parent;
    State* state;
  };
  struct type {
    ParentClass parent;
  };
  using settings_type = decltype(State::settings);
  using properties_type = std::vector<property<settings_type>>;

  static State& state_of(gpointer object) { return *static_cast<instance*>(object)->state; }
  static settings_type settings_of(gpointer object) {
    GST_OBJECT_LOCK(object);
    settings_type result = state_of(object).settings;
    GST_OBJECT_UNLOCK(object);
    return result;
  }

  /// For the class's function of this name.
  static void init_class(gpointer type,
                         properties_type properties,
                         const char* name,
                         const char* kind,
                         const char* description,
                         const char* pad,
                         GstPadDirection direction) {
    parent_class_ = static_cast<GObjectClass*>(g_type_class_peek_parent(type));
    auto* const object = static_cast<GObjectClass*>(type);
    object->set_property = &set_property;
    object->get_property = &get_property;
    object->finalize = &finalize;
    properties_ = std::move(properties);
    guint id = 0;
    for (const property<settings_type>& each : properties_) {
      g_object_class_install_property(object, ++id, each.spec);
    }
    auto* const element = static_cast<GstElementClass*>(type);
    gst_element_class_set_static_metadata(element, name, kind, description, "the gpushm authors");
    GstCaps* const any = gst_caps_new_any();
    gst_element_class_add_pad_template(element,
                                       gst_pad_template_new(pad, direction, GST_PAD_ALWAYS, any));
    gst_caps_unref(any);
  }
  static ParentClass* parent_class() {
    return static_cast<ParentClass*>(static_cast<gpointer>(parent_class_));
  }
  /// For the instance's function of this name.
  static void init_instance(gpointer object) {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): GObject allocates the element itself
    static_cast<instance*>(object)->state = new State;
  }
  static GType register_type(GType parent,
                             const char* name,
                             GClassInitFunc class_init,
                             GInstanceInitFunc instance_init) {
    return g_type_register_static_simple(
        parent, name, sizeof(type), class_init, sizeof(instance), instance_init, GTypeFlags{});
  }

  /// Memory that is still in use keeps a consumer.
  template <typename Base>
  static gboolean stop(Base* base) {
    state_of(base).channel.reset();
    return TRUE;
  }
  template <typename Base>
  static gboolean unlock(Base* base) {
    state_of(base).gate.close();
    return TRUE;
  }
  template <typename Base>
  static gboolean unlock_stop(Base* base) {
    state_of(base).gate.open();
    return TRUE;
  }

  static void set_property(GObject* object, guint id, const GValue* value, GParamSpec* /*spec*/) {
    GST_OBJECT_LOCK(object);
    properties_.at(id - 1).set(state_of(object).settings, value);
    GST_OBJECT_UNLOCK(object);
  }

 private:
  static void get_property(GObject* object, guint id, GValue* value, GParamSpec* /*spec*/) {
    GST_OBJECT_LOCK(object);
    properties_.at(id - 1).get(state_of(object).settings, value);
    GST_OBJECT_UNLOCK(object);
  }
  static void finalize(GObject* object) {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): GObject allocates the element itself
    delete static_cast<instance*>(static_cast<gpointer>(object))->state;
    parent_class_->finalize(object);
  }

  static inline GObjectClass* parent_class_ = nullptr;
  static inline properties_type properties_;
};

}  // namespace gpushm::gstreamer
