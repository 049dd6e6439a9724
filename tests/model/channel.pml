// SPDX-License-Identifier: Apache-2.0
//
// The protocol of a channel (docs/adr/0032-timelines-and-channels.md, section "Channels") as a model for spin. tests/model/check.sh
// checks it in several configurations; tests/model/README.md has the bounds and the results.
//
// Modelled, each as a process of its own: the CPU and the stream of the producer, of each `block` and each `latest` consumer, and
// of the producer that takes over; the broker; a death. A stream executes a FIFO of enqueued operations. All loads and stores of
// shared words are sequentially consistent, each is one step. Writing and reading the contents of a slot takes two steps, so a read
// that overlaps a write is seen. Death stops the CPU at any step and, later, the stream at any step; the fence is after both.
//
// Merged into one step, because no other process can see the difference:
// - a last value and the terminal word that follows it (the last value is not read before the terminal word);
// - row, metadata and order of an item (they are not read before `announced` has the item, except by a `latest` consumer with an
//   older item, which the row refutes);
// - the row's read and the store of `taken` (a later store of `taken` makes the producer wait longer, nothing else).
//
// Not modelled: work-sharing (share.pml); k > 1; more than two claimed slots or two streams of a consumer, which release in any order
// (a CPU that releases is like such a stream); several streams of a producer; hand-over by a living producer; hostile members; the death of the broker; more than one death; deadlines; 64-bit numbers that wrap (they do not).
//
// Properties, checked in each configuration:
// - contents: at each read step of a good item the slot has that item (assertions in consumer_stream); an item is good if it was
//   announced and its `published` store was executed (`good`);
// - block: a consumer gets each item from its start to the last good one, in order (consumer_stream, end of block_consumer);
// - latest: a consumer gets complete items only, with increasing numbers, and after a normal close the last one;
// - rows: the row and the metadata that a consumer uses are those of its item;
// - end: consumers read the number of the last good item when the producer's words have ended;
// - no deadlock: in each final state each living process has finished and each living stream is idle (spin's end states);
// - oldest: the slot that `acquire` takes never has the newest item (N >= 2);
// - with CHECKS: the producer's tests of the consumers' words never refute an honest consumer;
// - termination: the state graph of the configurations that check.sh runs with -DNP has no cycle.

#ifndef N
#define N 3             // slots
#endif
#ifndef ITEMS
#define ITEMS 4         // items of the first producer
#endif
#ifndef MORE
#define MORE 2          // items of the producer that takes over
#endif
#ifndef BLOCK
#define BLOCK 1         // `block` consumers: 0 .. BLOCK - 1
#endif
#ifndef LATEST
#define LATEST 1        // `latest` consumers: BLOCK .. BLOCK + LATEST - 1
#endif
#ifndef LATE
#define LATE 0          // bit c: consumer c joins later; the others are members before the first item
#endif
#ifndef LEAVES
#define LEAVES 0        // bit c: consumer c can leave after any item
#endif
#ifndef DIES
#define DIES 0          // bit 0: the first producer can die; bit 1 + c: consumer c can die; at most one of them dies
#endif
#ifndef HANGS
#define HANGS 0         // 1 + c: consumer c can stop for good without dying: no fence, its words do not end
#endif
#ifndef TAKEOVER
#define TAKEOVER 0      // 1: a second producer takes the channel over when the words of the first have ended
#endif
#ifndef CHECKS
#define CHECKS 0        // 1: the producer tests the words of `block` consumers before it uses them
#endif
#ifndef KEEPS
#define KEEPS 0         // 1: a `block` consumer keeps its last good item until it has read the next one
#endif
#ifndef CLAIMS
#define CLAIMS 1        // 2: a producer claims up to two slots, and publishes them in any order
#endif
#ifndef STREAMS
#define STREAMS 1       // 2: `block` consumer 0 reads and releases on two streams
#endif
#ifndef REFUSES
#define REFUSES 0       // 1: a stream can refuse the store of one item, which is taken back; its slot is abandoned
#endif
#ifndef DEPTH
#define DEPTH 4         // operations on the producer's stream; two for each item
#endif
#ifndef READS
#define READS 2         // items on a consumer's stream
#endif
#ifndef FAULT
#define FAULT 0         // a fault that spin must find; see check.sh
#endif

#define NO_REREAD 1            // acquire does not read the `held` words again
#define NO_ROW_CHECK 2         // a latest consumer does not read the row after it has stored `held`
#define NO_RELEASED_WAIT 3     // the producer's stream does not wait for `released`
#define NO_FENCE 4             // the broker ends words before the fence
#define LAST_VALUE_LATE 5      // the last value is stored after the terminal word
#define JOIN_UNPROTECTED 6     // a joiner reads `announced` itself; the producer lists it later
#define NO_TAKEN_WAIT 7        // acquire does not wait for `taken`
#define NUMBERS_REUSED 8       // the new producer continues after the last good item instead of the last announced one
#define NO_END_CHECK 9         // a latest consumer does not check that `announced` has not ended after it has stored `held`
#define NO_BEFORE 10           // the new producer does not look for the item that a slot had before the dead one's next item
#define LEAVE_EARLY 11         // a consumer leaves before its stream is idle
#define ANNOUNCE_EARLY 12      // `announced` is stored before order and metadata
#define PUBLISH_EARLY 13       // `published` is enqueued before the writes
#define JOIN_AT_TAKEN_SLOT 14  // a joiner starts at the newest item although its slot has been acquired
#define NO_JOIN_VALUES 15      // a joiner does not store start - 1 in `released` and `taken`
#define RELEASE_EARLY 16       // `released` or `held` is stored before the last read
#define CHECK_ORDER 17         // the producer's test reads `released` before `published`
#define LAST_VALUE_EARLY 19    // a consumer reads the last value of `published` when only `announced` has ended
#define CHECK_WITHOUT_START 20 // the producer's test ignores where the consumer started
#define RELEASED_OF_NEW 21     // the new producer does not wait for the items of the dead one
#define ALL_RELEASED 22        // the new producer waits for all items of the dead one, for each slot
#define NOT_THE_LAST 24        // a latest consumer takes nothing when the producer has closed the channel
#define NO_CLAMP 25            // consumers and the new producer take `published` alone for the last good item
#define ANNOUNCE_FIRST 26      // `announced` is stored before the stream has the store of `published`, which it may refuse
#define NO_RELEASE_ORDER 27    // a stream's release is not ordered after the one before on another stream
#define TAKE_NEWEST 28         // acquire takes the newest item's slot when another one is claimed
#define OLDEST_BY_ROW 23       // the new producer takes slots whose item it does not know first

#define ENDED 255
#define TORN 254               // contents while they are rewritten
#define CLAIMED 253            // in the row of a slot that is claimed
#define CONSUMERS (BLOCK + LATEST)
#ifndef ORDER
#define ORDER (4 * N)
#endif
#define NONE N                 // not a slot
#define BIT(set, i) (((set) >> (i)) & 1)

// Words of producers 0 and 1. Producer 1 has words, rows and order of its own; a member writes only its own page.
byte announced[2], published[2], last_announced[2], last_published[2];
byte row[2 * N], meta[2 * N], order[2 * ORDER];
#if REFUSES
bool refused;
#endif
#if TAKEOVER
byte before[N];                // of producer 0: the item that a slot had before that of its row
#endif
// Words of consumers.
byte released[CONSUMERS], taken[CONSUMERS], held[CONSUMERS];
byte contents[N];

// Private to the living producer: the item in each slot, the list of members, its first item, its mutex.
byte item[N];
bool member[CONSUMERS];
byte first = 1, floor[N];
bool locked, ready;
#if CLAIMS > 1
bool claimed[N];
#define IS_CLAIMED(x) claimed[x]
#else
#define IS_CLAIMED(x) false
#endif
#if CHECKS
byte start[CONSUMERS];
#endif

// Processes: 0 is the first producer, 1 + c consumer c.
bool closed[2], dead[1 + CONSUMERS], halted[1 + CONSUMERS], asked[1 + CONSUMERS], ended[1 + CONSUMERS], hung;

chan die[1 + CONSUMERS] = [0] of { bool };   // to a CPU
chan stop[1 + CONSUMERS] = [0] of { bool };  // to a stream

// What has happened; read by assertions only.
byte good[2];                  // the last item whose `published` store was executed: it may not be announced
byte seen[CONSUMERS];          // the last good item that the consumer's stream has read

// slot, item (0: waits and the begin of the writes; else: their end, and publish), values to wait for
chan writes0 = [DEPTH] of { byte, byte, byte, byte };
#if TAKEOVER
chan never_stop = [0] of { bool };
chan writes1 = [DEPTH] of { byte, byte, byte, byte };
#endif
// slot, item, producer, item whose release is before this one's on another stream
chan reads[CONSUMERS] = [READS] of { byte, byte, byte, byte };
#if STREAMS > 1
chan more_reads = [READS] of { byte, byte, byte, byte };
chan streams_stay = [0] of { bool };
byte released_before;          // the event that consumer 0 has recorded behind each release
#endif

#if FAULT == NO_FENCE
#define GONE(i) (dead[i] && !hung)
#else
#define GONE(i) (dead[i] && halted[i] && !hung)
#endif

// What is good of a producer that has ended, and what its words say about it.
#define GOOD(g) (good[g] < last_announced[g] -> good[g] : last_announced[g])
#if FAULT == NO_CLAMP
#define LAST_GOOD(g) last_published[g]
#else
#define LAST_GOOD(g) (last_published[g] < last_announced[g] -> last_published[g] : last_announced[g])
#endif

#if N == 1
#define HAS(number) (item[0] == (number))
#elif N == 2
#define HAS(number) (item[0] == (number) || item[1] == (number))
#elif N == 3
#define HAS(number) (item[0] == (number) || item[1] == (number) || item[2] == (number))
#else
#define HAS(number) (item[0] == (number) || item[1] == (number) || item[2] == (number) || item[3] == (number))
#endif

// A `held` word names the item of a slot.
#define NAMES(c, x) (member[c] && held[c] != 0 && held[c] == item[x])
#if LATEST == 0
#define NAMED(x) false
#elif LATEST == 1
#define NAMED(x) NAMES(BLOCK, x)
#else
#define NAMED(x) (NAMES(BLOCK, x) || NAMES(BLOCK + 1, x))
#endif

// Consumers must have finished with items up to this one before the slot is rewritten. `floor` is for slots of the dead producer
// that have no good item left.
#define OLD(x) (item[x] == 0 -> floor[x] : item[x])

#if FAULT == OLDEST_BY_ROW
#define AGE(x) item[x]
#else
#define AGE(x) OLD(x)
#endif
#define BEFORE(y, x) (!IS_CLAIMED(y) && !NAMED(y) && !IS_KEPT(y) && (AGE(y) < AGE(x) || (AGE(y) == AGE(x) && (y) < (x))))
// Needed if another slot is claimed.
#if CLAIMS > 1 && LATEST > 0 && FAULT != TAKE_NEWEST
#define IS_KEPT(x) (item[x] == NEWEST_ITEM && NEWEST_ITEM >= first)
#else
#define IS_KEPT(x) false
#endif
#define NEWEST_ITEM (ready -> announced[1] : announced[0])
#define FREE(x) (!IS_CLAIMED(x) && !NAMED(x) && !IS_KEPT(x))
#if N == 1
#define OLDEST(x) FREE(x)
#elif N == 2
#define OLDEST(x) (FREE(x) && !BEFORE(0, x) && !BEFORE(1, x))
#elif N == 3
#define OLDEST(x) (FREE(x) && !BEFORE(0, x) && !BEFORE(1, x) && !BEFORE(2, x))
#else
#define OLDEST(x) (FREE(x) && !BEFORE(0, x) && !BEFORE(1, x) && !BEFORE(2, x) && !BEFORE(3, x))
#endif

#if FAULT == NO_TAKEN_WAIT || BLOCK == 0
#define TAKEN(number) true
#elif BLOCK == 1
#define TAKEN(number) (!member[0] || taken[0] >= (number))
#else
#define TAKEN(number) ((!member[0] || taken[0] >= (number)) && (!member[1] || taken[1] >= (number)))
#endif

#define CAN_TAKE(x) (!locked && OLDEST(x) && TAKEN(OLD(x)))

#if FAULT == LAST_VALUE_LATE
#define END_ANNOUNCED(g) old = announced[g]; announced[g] = ENDED; last_announced[g] = old
#define END_PUBLISHED(g) old = published[g]; published[g] = ENDED; last_published[g] = old
#else
#define END_ANNOUNCED(g) \
  d_step { last_announced[g] = announced[g]; announced[g] = ENDED; printf("end announced %d %d\n", g, last_announced[g]) }
#define END_PUBLISHED(g) \
  d_step { last_published[g] = published[g]; published[g] = ENDED; printf("end published %d %d\n", g, last_published[g]) }
#endif

#if FAULT == NO_RELEASED_WAIT || BLOCK == 0
#define RELEASED(w0, w1) true
#elif BLOCK == 1
#define RELEASED(w0, w1) (released[0] >= w0)
#else
#define RELEASED(w0, w1) (released[0] >= w0 && released[1] >= w1)
#endif

proctype producer_stream(byte g; chan work, halt) {
  byte x, s, w0, w1;
  {
end:
    do
    :: work?<x, s, w0, w1> ->
       if
       :: s == 0 ->
          d_step { RELEASED(w0, w1) -> contents[x] = TORN; work?x, s, w0, w1; x = 0; s = 0; w0 = 0; w1 = 0 }
       :: else ->
          d_step {
            true;
            if
            :: x != NONE -> contents[x] = s
            :: else  // a fault
            fi
          }
          d_step {
            published[g] = s; good[g] = s; printf("publish %d\n", s);
            work?x, s, w0, w1; x = 0; s = 0; w0 = 0; w1 = 0
          }
       fi
    od
  } unless {
    atomic {
      halt?true ->
      halted[0] = true;
      do
      :: work?_, _, _, _
      :: empty(work) -> break
      od;
      x = 0; s = 0; w0 = 0; w1 = 0
    }
  }
}

// Takes the oldest slot that no `held` word names. Waits on the CPU until each block consumer's CPU has read the slot's row.
inline acquire(g, work) {
  do
  :: atomic {
       if
       :: nfull(work) && CAN_TAKE(0) -> slot = 0
#if N > 1
       :: nfull(work) && CAN_TAKE(1) -> slot = 1
#endif
#if N > 2
       :: nfull(work) && CAN_TAKE(2) -> slot = 2
#endif
#if N > 3
       :: nfull(work) && CAN_TAKE(3) -> slot = 3
#endif
       fi;
       locked = true;
       assert(N == 1 || item[slot] != announced[g] || item[slot] < first)
     }
#if CHECKS && BLOCK > 0
     test_words(g);
#endif
#if TAKEOVER
     if
     :: g == 0 -> before[slot] = OLD(slot)
     :: else
     fi;
#endif
#if LATEST > 0 && FAULT != NO_REREAD
     row[g * N + slot] = CLAIMED;
#if LATEST > 1
     if
     :: NAMES(BLOCK + 1, slot) -> give_up(g); goto again
     :: else
     fi;
#endif
     atomic {
       if
       :: NAMES(BLOCK, slot)
       :: else -> claim(g, work); break
       fi
     }
     give_up(g);
#if LATEST > 1
again:
     skip
#endif
#else
     atomic { claim(g, work); break }
#endif
  od
}

inline claim(g, work) {
  row[g * N + slot] = CLAIMED;
  w0 = 0; w1 = 0;
#if BLOCK > 0 && FAULT == RELEASED_OF_NEW
  w0 = (member[0] && OLD(slot) >= first -> OLD(slot) : 0);
#elif BLOCK > 0
  w0 = (member[0] -> OLD(slot) : 0);
#endif
#if BLOCK > 1
  w1 = (member[1] -> OLD(slot) : 0);
#endif
  floor[slot] = OLD(slot); item[slot] = 0;
#if CLAIMS > 1
  claimed[slot] = true;
#endif
#if FAULT == PUBLISH_EARLY
  work!NONE, s, 0, 0;
#else
  work!slot, 0, w0, w1;
  w0 = 0; w1 = 0;
#endif
  printf("acquire %d\n", slot);
  locked = false
}

inline give_up(g) {
  d_step { row[g * N + slot] = item[slot]; printf("pass %d\n", slot) }
  locked = false
}

// The producer reads `published` first: it can grow between the two reads. A consumer that has started later, or that continues
// with a new producer, has not yet released the items before its start.
inline test_word(g, c) {
#if FAULT == CHECK_ORDER
  value = released[c];
  d_step {
    assert(!member[c] || value == ENDED || value <= announced[g]);
    assert(!member[c] || value == ENDED || (value >= start[c] -> value : start[c] - 1) + N >= published[g]);
    value = 0
  }
#else
  value = published[g];
  d_step {
    assert(!member[c] || released[c] == ENDED || released[c] <= announced[g]);
#if FAULT == CHECK_WITHOUT_START
    assert(!member[c] || released[c] == ENDED || released[c] + N >= value);
#else
    assert(!member[c] || released[c] == ENDED || (released[c] >= start[c] -> released[c] : start[c] - 1) + N >= value);
#endif
    value = 0
  }
#endif
}

inline test_words(g) {
  test_word(g, 0);
#if BLOCK > 1
  test_word(g, 1);
#endif
}

inline publish(g, work) {
#if FAULT == ANNOUNCE_EARLY
  announced[g] = s;
#endif
  d_step {
    row[g * N + slot] = s;
    meta[g * N + slot] = s;
    order[g * ORDER + s % ORDER] = slot;
    printf("prepare %d %d\n", s, slot)
  }
#if FAULT == ANNOUNCE_FIRST
  announced[g] = s;
#elif FAULT == PUBLISH_EARLY
  work!slot, 0, w0, w1;
#endif
  if
  :: work!slot, s, 0, 0;
     d_step {
       announced[g] = s; item[slot] = s; floor[slot] = 0;
#if CLAIMS > 1
       claimed[slot] = false;
#endif
       printf("announce %d\n", s);
       slot = 0; w0 = 0; w1 = 0; s++
     }
#if REFUSES
  :: d_step {
       g == 0 && !refused -> refused = true;
       row[g * N + slot] = 0;
#if CLAIMS > 1
       claimed[slot] = false;
#endif
       printf("refuse %d\n", s);
       slot = 0; w0 = 0; w1 = 0
     }
#endif
  fi
}

// One item, or two in any order.
inline produce(g, work, limit) {
  acquire(g, work);
#if CLAIMS > 1
  if
  :: s + 1 < limit ->
     other = slot;
     acquire(g, work);
     if
     :: true
     :: d_step { w0 = slot; slot = other; other = w0; w0 = 0 }
     fi;
     publish(g, work);
     slot = other; other = 0
  :: true
  fi;
#endif
  publish(g, work)
}

proctype producer() {
  byte s = 1, slot, w0, w1;
#if CLAIMS > 1
  byte other;
#endif
#if CHECKS
  byte value;
#endif
  {
    do
    :: s <= ITEMS ->
       produce(0, writes0, ITEMS + 1)
    :: else -> break
    od;
    atomic { empty(writes0) -> asked[0] = true; closed[0] = true; printf("close\n") }  // an orderly close, after the stream
  } unless {
    atomic {
      die[0]?true ->
      dead[0] = true;
      printf("kill producer\n");
      s = 0; slot = 0; w0 = 0; w1 = 0;
#if CLAIMS > 1
      other = 0;
#endif
      do
      :: slot < N ->
         item[slot] = 0; floor[slot] = 0;
#if CLAIMS > 1
         claimed[slot] = false;
#endif
         slot++
      :: else -> break
      od;
      slot = 0;
      locked = false
    }
  }
}

#if TAKEOVER
// Begins when both words of the dead producer have ended. The broker names the members. After a normal close the next producer has
// other slots: it does not matter here.
proctype next_producer() {
#if FAULT == LAST_VALUE_LATE
  byte old;
#endif
  byte s, slot, w0, w1, last;
#if CLAIMS > 1
  byte other;
#endif
#if CHECKS
  byte value;
#endif
  if
  :: dead[0] && announced[0] == ENDED && published[0] == ENDED
  :: closed[0] -> goto finished
  fi;
  d_step {
#if FAULT == NUMBERS_REUSED
    first = last_published[0] + 1;
#else
    first = last_announced[0] + 1;
#endif
    last = LAST_GOOD(0);
    slot = 0;
    do
    :: slot < N ->
       if
       :: FAULT == ALL_RELEASED -> floor[slot] = last
       :: FAULT != ALL_RELEASED && row[slot] <= last -> item[slot] = row[slot]
       :: FAULT != ALL_RELEASED && row[slot] > last && before[slot] <= last ->
          floor[slot] = before[slot];
          item[slot] = (row[slot] == CLAIMED && FAULT != NO_BEFORE -> before[slot] : 0)
       :: else ->
          // The next item may have overwritten the order of the oldest one.
          w0 = (last_announced[0] + 1 > ORDER -> last_announced[0] + 1 - ORDER : 0);
          floor[slot] = (w0 < last -> w0 : last);
          w0++;
          do
          :: w0 <= last ->
             floor[slot] = (order[w0 % ORDER] == slot -> w0 : floor[slot]);
             w0++
          :: else -> break
          od;
          w0 = 0
       fi;
       slot++
    :: else -> break
    od;
    slot = 0;
    s = first;
    last = s + MORE;
    announced[1] = s - 1; published[1] = s - 1;
#if CHECKS
    start[0] = s;
#if BLOCK > 1
    start[1] = s;
#endif
#endif
    locked = false;
    ready = true;
    printf("takeover %d\n", s)
  }
  do
  :: s < last ->
     produce(1, writes1, last)
  :: else -> break
  od;
  empty(writes1);
  // The broker does this.
  closed[1] = true;
  END_ANNOUNCED(1);
  END_PUBLISHED(1);
finished:
  skip
}
#endif

// A release behind one on another stream of the same consumer waits for its event, not for the word.
#if STREAMS > 1 && FAULT != NO_RELEASE_ORDER
#define MAY_RELEASE(c, p) (c != 0 || released_before == p)
#else
#define MAY_RELEASE(c, p) true
#endif
#if STREAMS > 1
#define IS_IDLE(c) (empty(reads[c]) && (c != 0 || empty(more_reads)))
#else
#define IS_IDLE(c) empty(reads[c])
#endif

proctype consumer_stream(byte c; chan work, halt) {
  byte x, s, g, p;
#if KEEPS
  byte kept = NONE;
#endif
  bool is_good;
  {
end:
    do
    :: work?<x, s, g, p> ->
       // A wait that an end has met is told apart from one that a value has met by the CPU (`check`).
       d_step {
         published[g] >= s ->
         is_good = (s <= good[g]);
         assert(!is_good || contents[x] == s)
       }
#if FAULT == RELEASE_EARLY
       if
       :: c < BLOCK -> released[c] = s
       :: else -> held[c] = 0
       fi;
#endif
       d_step {
         MAY_RELEASE(c, p);  // also: spin does not delay a d_step that begins with an assertion during a rendezvous
         assert(!is_good || contents[x] == s);
         if
         :: c < BLOCK ->
            assert(!is_good || s == seen[c] + 1 || (g == 1 && s == first && seen[c] >= GOOD(0)));
#if KEEPS
            assert(kept == NONE || contents[kept] == seen[c]);
            released[c] = (is_good -> seen[c] : released[c]);
            kept = (is_good -> x : kept)
#else
            released[c] = s
#if STREAMS > 1
            ; released_before = (c == 0 -> s : released_before)
#endif
#endif
         :: else ->
            assert(!is_good || s > seen[c]);
            assert(meta[g * N + x] == s);
            held[c] = 0
         fi;
         seen[c] = (is_good -> s : seen[c]);
         printf("release %d %d\n", c, s);
         work?x, s, g, p; x = 0; s = 0; g = 0; p = 0; is_good = false
       }
    od
  } unless {
    atomic {
      halt?true ->
      halted[1 + c] = true;
      do
      :: work?_, _, _, _
      :: empty(work) -> break
      od;
      x = 0; s = 0; g = 0; p = 0; is_good = false; seen[c] = 0
    }
  }
}

#define NEWEST(g) (announced[g] >= first && HAS(announced[g]) -> announced[g] : announced[g] + 1)

// The producer's library thread answers, under the mutex of acquire: it lists the consumer and starts it at the newest item, or at
// the next one if the slot of the newest is already acquired (N = 1) or there is none.
inline answer(c, from) {
#if FAULT == JOIN_AT_TAKEN_SLOT
  s = (announced[from] >= first -> announced[from] : announced[from] + 1);
#else
  s = NEWEST(from);
#endif
  g = from;
#if CHECKS
  start[c] = s;
#endif
  printf("join %d %d\n", c, s)
}

inline join(c) {
  if
  :: BIT(LATE, c) ->
     if
     :: atomic { !dead[0] && !asked[0] && !locked -> answer(c, 0); member[c] = (FAULT != JOIN_UNPROTECTED) }
#if TAKEOVER
     :: atomic { ready && !locked && announced[1] != ENDED -> answer(c, 1); member[c] = true }
     :: atomic { ready && announced[1] == ENDED -> goto finished }
     :: atomic { closed[0] && announced[0] == ENDED -> goto finished }
#else
     :: announced[0] == ENDED -> goto finished
#endif
     fi;
#if FAULT == JOIN_UNPROTECTED
     !locked -> member[c] = true;
#endif
#if FAULT == NO_JOIN_VALUES
     seen[c] = s - 1
#else
     d_step { released[c] = s - 1; taken[c] = s - 1; seen[c] = s - 1 }
#endif
  :: else -> s = 1
  fi
}

inline leave(c) {
#if FAULT != LEAVE_EARLY
  IS_IDLE(c);
#endif
  d_step { asked[1 + c] = true; printf("leave %d\n", c) }
}

inline take(c, work) {
  d_step {
    nfull(work) ->
    x = order[g * ORDER + s % ORDER];
    assert(row[g * N + x] == s && meta[g * N + x] == s);
    taken[c] = s;
    work!x, s, g, p; printf("take %d %d\n", c, s);
#if STREAMS > 1
    p = (c == 0 -> s : 0);
#endif
    x = 0; s++
  }
}

proctype block_consumer(byte c) {
  byte s, x, g, last, from, p;
  {
    join(c);
    from = s;
    do
    :: BIT(LEAVES, c) -> leave(c); goto finished
    :: atomic {
         announced[g] >= s ->
         if
         :: announced[g] != ENDED
         :: else ->
#if FAULT != LAST_VALUE_EARLY
            published[g] == ENDED;
#endif
            last = LAST_GOOD(g);
            assert(last == GOOD(g));
            if
            :: s > last -> last = 0; goto over
            :: else -> last = 0
            fi
         fi
       }
#if STREAMS > 1
       if
       :: take(c, reads[c])
       :: c == 0 -> take(c, more_reads)
       fi;
#else
       take(c, reads[c]);
#endif
       goto next;
over:
#if TAKEOVER
       if
       :: atomic { g == 0 && ready -> g = 1; s = first; printf("attach %d %d\n", c, s) }
       :: closed[g] -> break
       fi;
#else
       break;
#endif
next:
       skip
    od;
    // A consumer that has joined at an announced item that never became good gets no item.
    atomic { IS_IDLE(c) -> assert(seen[c] == GOOD(g) || (GOOD(g) < from && seen[c] == from - 1)) };
finished:
    skip
  } unless {
    atomic { die[1 + c]?true -> dead[1 + c] = true; printf("kill consumer %d\n", c); s = 0; x = 0; g = 0; last = 0; from = 0; p = 0 }
  }
}

proctype latest_consumer(byte c) {
  byte s, x, g, mine, from;
  {
    join(c);
    from = s;
    mine = s - 1;
    do
    :: BIT(LEAVES, c) -> leave(c); goto finished
    :: atomic { announced[g] > mine -> s = announced[g] }
       if
       :: s == ENDED && (!closed[g] || FAULT == NOT_THE_LAST) -> goto over
       :: s == ENDED && closed[g] && FAULT != NOT_THE_LAST ->
          atomic {
            published[g] == ENDED -> s = last_published[g];
            if
            :: s <= mine -> goto over
            :: else
            fi
          }
       :: else
       fi;
       // k = 1: waits until its stream has cleared the word.
       held[c] == 0 -> held[c] = s;
       atomic {
         x = order[g * ORDER + s % ORDER];
         if
         :: row[g * N + x] != s && FAULT != NO_ROW_CHECK -> goto refuted
         :: else
         fi;
#if TAKEOVER
       }
       atomic {
#endif
         if
         :: announced[g] == ENDED && !closed[g] && FAULT != NO_END_CHECK -> goto refuted
         :: else
         fi;
         reads[c]!x, s, g, 0; printf("hold %d %d\n", c, s);
         mine = s; x = 0; s = 0
       }
       goto next;
refuted:
       atomic { held[c] = 0; printf("retry %d %d\n", c, s); x = 0; s = 0 }
       goto next;
over:
#if TAKEOVER
       if
       :: atomic { g == 0 && ready -> g = 1; mine = first - 1; s = 0; x = 0; printf("attach %d %d\n", c, first) }
       :: closed[g] -> break
       fi;
#else
       break;
#endif
next:
       skip
    od;
    atomic { IS_IDLE(c) -> assert(!closed[g] || seen[c] == good[g] || (good[g] < from && seen[c] == from - 1)) };
finished:
    skip
  } unless {
    atomic { die[1 + c]?true -> dead[1 + c] = true; printf("kill consumer %d\n", c); s = 0; x = 0; g = 0; mine = 0; from = 0 }
  }
}

inline end_consumer(c) {
  if
  :: c < BLOCK -> released[c] = ENDED; taken[c] = ENDED
  :: else -> held[c] = ENDED
  fi;
  // The producer, if there is one, drops the member.
  atomic { !locked || dead[0] -> member[c] = false; printf("end consumer %d\n", c) }
}

proctype broker() {
#if FAULT == LAST_VALUE_LATE
  byte old;
#endif
end:
  do
  :: atomic { (asked[0] || GONE(0)) && !ended[0] -> ended[0] = true }
     if
     :: END_ANNOUNCED(0); END_PUBLISHED(0)
     :: END_PUBLISHED(0); END_ANNOUNCED(0)
     fi
  :: atomic { (asked[1] || GONE(1)) && !ended[1] -> ended[1] = true }
     end_consumer(0)
#if BLOCK + LATEST > 1
  :: atomic { (asked[2] || GONE(2)) && !ended[2] -> ended[2] = true }
     end_consumer(1)
#endif
#if BLOCK + LATEST > 2
  :: atomic { (asked[3] || GONE(3)) && !ended[3] -> ended[3] = true }
     end_consumer(2)
#endif
  od
}

#if DIES || HANGS
// At most one process dies or hangs, at any step of its CPU; its stream stops later, at any step.
proctype death() {
#ifdef SIMULATION  // deaths at all stages of a random run
  byte items;
  select(items : 0 .. ITEMS);
  announced[0] >= items;
#endif
end:
  if
#if BIT(DIES, 0)
  :: die[0]!true -> stop[0]!true
#endif
#if BIT(DIES, 1)
  :: die[1]!true -> stop[1]!true
#endif
#if BIT(DIES, 2)
  :: die[2]!true -> stop[2]!true
#endif
#if BIT(DIES, 3)
  :: die[3]!true -> stop[3]!true
#endif
#if HANGS
  :: atomic { die[HANGS]!true -> hung = true; printf("hang\n") } stop[HANGS]!true
#endif
  fi
}
#endif

init {
  byte c;
  atomic {
    do
    :: c < CONSUMERS ->
       member[c] = !BIT(LATE, c);
#if CHECKS
       start[c] = 1;
#endif
       run consumer_stream(c, reads[c], stop[1 + c]);
       if
       :: c < BLOCK -> run block_consumer(c)
       :: else -> run latest_consumer(c)
       fi;
       c++
    :: else -> break
    od;
    c = 0;
#if STREAMS > 1
    run consumer_stream(0, more_reads, streams_stay);
#endif
    run producer_stream(0, writes0, stop[0]);
    run producer();
#if TAKEOVER
    run producer_stream(1, writes1, never_stop);
    run next_producer();
#endif
    run broker();
#if DIES || HANGS
    run death()
#endif
  }
}
