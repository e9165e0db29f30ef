// Hand-overs to program images that cannot go on with a fast connection, and the resets that may come of them.
#ifndef UNABLE_H
#define UNABLE_H

#include "play.h"

// Makes what the images need, and notes where it is.
void prepare_images(void);
// Hands the connection to an image that plays `budget` steps and cannot go on with the library; returns when that is
// over.
void hand_unable(struct actor *a, _Atomic uint64_t *rng, int budget);
// Sends until there is no more room, or all of this phase is sent.
void send_until_full(struct actor *a);
// Whether a connection of this round has ended by a reset, and each side of every connection is over or has heard of
// one.
bool is_over_by_reset(void);
// Adds up what the round had of such images and resets.
void count_resets(void);
// Says that, for the last line of all.
void tell_resets(void);

#endif
