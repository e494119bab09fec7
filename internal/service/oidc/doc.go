// Package oidc logs people in by OpenID Connect, with roles from claims. It has no sessions and pages.
package oidc
