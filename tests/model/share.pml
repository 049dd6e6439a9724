// SPDX-License-Identifier: Apache-2.0
//
// Work that consumers of a channel share (docs/adr/0032-timelines-and-channels.md, "Work-sharing") as a model for spin; the rest of
// the protocol is channel.pml. Modelled: the producer (CPU and stream in one, each store a step), two consumers (the same), the
// broker, the death of one consumer at any step (the fence is in channel.pml). Loads and stores of shared words are sequentially consistent.
//
// Not modelled: `block` and `latest` consumers beside them, the death of the producer, hostile members.
//
// Properties: an item that is read has its contents from the first to the last step of the read; each item is used at least once, and
// exactly once if nobody dies; no deadlock.

#ifndef N
#define N 3         // slots
#endif
#ifndef ITEMS
#define ITEMS 4
#endif
#ifndef DEPTH
#define DEPTH 2     // items that a consumer is given before it has released one
#endif
#ifndef DIES
#define DIES 0      // 1: consumer 0 can die
#endif
#ifndef LATE
#define LATE 0      // 1: consumer 1 joins at any time
#endif
#ifndef FAULT
#define FAULT 0
#endif
#define NO_USED_CHECK 1  // acquire takes slots that are not released
#define NO_REGIVE 2      // what a dead consumer had is given to nobody
#define ENDED_IS_FREE 3  // acquire takes the slots of a consumer whose words have ended, before it is dropped
#define ROW_LATE 4       // a consumer is given an item before its row is stored

#define W 2
#define NOBODY W
#define TORN 255

byte published, row[N], contents[N];  // written by the producer
byte given[W], given_slot[W * N];
byte released[W];                     // written by the consumer
bool ended[W];                        // written by the broker; `released` is the last value then

byte owner[N] = NOBODY, count[N], item[N];  // private to the producer
bool member[W];

bool dying[W], dead[W], done;
byte used[ITEMS + 1];

#define UNRELEASED(w) (given[w] - released[w])
#define HAS_ROOM(w) (member[w] && UNRELEASED(w) < DEPTH)
#define IS_FULL ((member[0] || member[1]) && !HAS_ROOM(0) && !HAS_ROOM(1))
#if FAULT == NO_USED_CHECK
#define IS_USED(x) false
#elif FAULT == ENDED_IS_FREE
#define IS_USED(x) (owner[x] != NOBODY && !ended[owner[x]] && released[owner[x]] < count[x])
#else
#define IS_USED(x) (owner[x] != NOBODY && released[owner[x]] < count[x])
#endif

#if N == 1
#define HAS_SLOT !IS_USED(0)
#elif N == 2
#define HAS_SLOT (!IS_USED(0) || !IS_USED(1))
#else
#define HAS_SLOT (!IS_USED(0) || !IS_USED(1) || !IS_USED(2))
#endif

// To the one with most room.
inline give(x) {
  if
  :: member[0] && (!member[1] || UNRELEASED(0) <= UNRELEASED(1)) -> owner[x] = 0
  :: member[1] && (!member[0] || UNRELEASED(1) <= UNRELEASED(0)) -> owner[x] = 1
  :: !member[0] && !member[1] -> owner[x] = NOBODY
  fi;
  if
  :: owner[x] != NOBODY ->
     count[x] = given[owner[x]] + 1;
     given_slot[owner[x] * N + count[x] % N] = x;
     given[owner[x]] = count[x]
  :: else
  fi
}

inline drop() {
  atomic {
    ended[0] && member[0] ->
    member[0] = false;
    y = 0;
    do
    :: y < N ->
       if
       :: owner[y] == 0 ->
          owner[y] = NOBODY;
          if
#if FAULT != NO_REGIVE
          :: count[y] > released[0] -> give(y)
#endif
          :: else
          fi
       :: else
       fi;
       y++
    :: else -> break
    od;
    y = 0
  }
}

proctype producer() {
  byte s = 1, x, y;
  do
  :: s <= ITEMS ->
     do
     :: drop()
     :: atomic {
          !IS_FULL && HAS_SLOT ->
          if
          :: !IS_USED(0) -> x = 0
#if N > 1
          :: !IS_USED(1) -> x = 1
#endif
#if N > 2
          :: !IS_USED(2) -> x = 2
#endif
          fi;
          owner[x] = NOBODY
        }
        break
     od;
     contents[x] = TORN;
     contents[x] = s;
#if FAULT == ROW_LATE
     atomic { give(x) }
     row[x] = s;
#else
     row[x] = s;
     atomic { give(x) }
#endif
     published = s;
     s++
  :: s > ITEMS ->
     // Until all is done; a consumer may still die.
     if
     :: drop()
     :: atomic { (!member[0] || UNRELEASED(0) == 0) && (!member[1] || UNRELEASED(1) == 0) && (!dying[0] || !member[0]) -> done = true; break }
     fi
  od
}

proctype consumer(byte w) {
  byte k = 1, x, s;
  if
  :: w == 1 && LATE -> atomic { member[1] = true; k = given[1] + 1 }
  :: else
  fi;
  {
end:
    do
    :: given[w] >= k ->
       x = given_slot[w * N + k % N];
       s = row[x];
       assert(s != 0);
       published >= s;
       assert(contents[x] == s);
       assert(contents[x] == s);
       used[s]++;
       atomic { released[w] = k; k++; x = 0; s = 0 }
    :: done -> break
    od
  } unless {
    atomic { dying[w] -> dead[w] = true }
  }
}

proctype broker() {
end:
  do
  :: atomic { dead[0] && !ended[0] -> ended[0] = true }
  od
}

init {
  byte i;
  atomic {
    member[0] = true;
    member[1] = !LATE;
    run producer();
    run consumer(0);
    run consumer(1);
    run broker()
  }
#if DIES
  if
  :: atomic { member[1] && !done -> dying[0] = true }
  :: done
  fi;
#endif
  done;
  atomic {
    i = 1;
    do
    :: i <= ITEMS ->
       assert(used[i] >= 1);
       assert(used[i] == 1 || dying[0]);
       i++
    :: else -> break
    od
  }
}
