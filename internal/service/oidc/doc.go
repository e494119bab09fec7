// Package oidc has people log in at a provider of OpenID Connect, and says by its claims
// which role they have. It holds no sessions and writes no pages.
package oidc
