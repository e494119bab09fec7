package wire

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlots: no more are taken than there are, all who wait get one, in their order.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := s.take(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(standstill / 2)
				if s.spare() {
					t.Error("more are taken than there are")
				}
				s.give()
			})
		}
		began := time.Now()
		all.Wait()
		if took := time.Since(began); took != 10*standstill/2 || s.used != 0 {
			t.Errorf("%s, %d are taken", took, s.used)
		}
	})
}

// TestSlotsStandStill: those who have one may wait for another one. They get it, and
// as many as before are there afterwards.
func TestSlotsStandStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for range 2 {
					if err := s.take(t.Context()); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Millisecond)
				}
				s.give()
				s.give()
			})
		}
		all.Wait()
		if s.used != 0 || s.beyond != 0 {
			t.Errorf("%d are taken, %d are beyond", s.used, s.beyond)
		}
	})
}

// TestSlotsEnd: who gives up waiting takes none, and a bound that is taken away lets all in.
func TestSlotsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		if err := s.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := s.take(ctx); err == nil || s.used != 1 {
			t.Errorf("%v, %d are taken", err, s.used)
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := s.take(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		s.bound(0)
		all.Wait()
		if s.used != 4 {
			t.Errorf("%d are taken", s.used)
		}
	})
}
