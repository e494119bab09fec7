package transform

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Keys remembers the keys that rules were made with. The zero value is ready. Its methods are safe
// for concurrent use.
type Keys struct {
	mu   sync.Mutex
	keys map[string]string // by reference
}

// Remember wraps read as the Secret of a Config, and remembers its results. nil is ReadSecret.
func (k *Keys) Remember(read func(ref string) (string, error)) func(ref string) (string, error) {
	if read == nil {
		read = ReadSecret
	}
	return func(ref string) (string, error) {
		key, err := read(ref)
		k.mu.Lock()
		defer k.mu.Unlock()
		if _, known := k.keys[ref]; err == nil && !known { // what the rules were made with
			if k.keys == nil {
				k.keys = map[string]string{}
			}
			k.keys[ref] = key
		}
		return key, err
	}
}

// Mark identifies rules and the keys of their masks. It differs for each token, so that it reveals
// nothing of a key.
func (k *Keys) Mark(rules *Set, token string) string {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s\n", rules)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range slices.Sorted(maps.Keys(k.keys)) {
		mac := hmac.New(sha256.New, []byte(k.keys[ref]))
		_, _ = mac.Write([]byte("millrace rules " + token))
		_, _ = sum.Write(mac.Sum(nil))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Seal is a Mark to store, with its token and a colon before it; "" where the rules have no keys.
func (k *Keys) Seal(rules *Set, token string) string {
	k.mu.Lock()
	none := len(k.keys) == 0
	k.mu.Unlock()
	if none {
		return ""
	}
	return token + ":" + k.Mark(rules, token)
}

// Fits reports that the seal has the same keys. An empty seal fits all.
func (k *Keys) Fits(rules *Set, seal string) bool {
	token, _, _ := strings.Cut(seal, ":")
	return seal == "" || k.Seal(rules, token) == seal
}
